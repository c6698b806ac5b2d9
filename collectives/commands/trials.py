"""The trials of `collectives doctor`: an allreduce between two ranks over each transport, and calls of a store.

Invariant: a trial ends by a deadline, leaves nothing behind, and reports an error as a `Problem` instead of raising it.
Trials run the same code as jobs, in this process.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np

from collectives.calls.moves import Deadline
from collectives.commands.checks import Problem, Section, without_password
from collectives.core.communicator import Communicator
from collectives.core.family import Origin
from collectives.core.links import Endpoints, Policy, context, link
from collectives.native.errors import CollectiveError, StoreError
from collectives.native.spelling import hint
from collectives.rendezvous import open_store
from collectives.rendezvous import secret as job_secret
from collectives.transports import registry
from collectives.transports.transport import Scope

LIMIT: Final = 5.0  # seconds for a transport, or a store, to show that it works


def transports(wanted: str, engine: bool, ranks: int) -> Section:
    """The part of the report of `collectives doctor` about transports: tries each between two ranks in this process.

    `wanted`: the transport that the job is to use, or "auto". `engine`: whether the C++ engine works; if not, nothing
    is tried. `ranks`: the job's number of ranks, from which the size of its shared memory follows.
    """
    facts: dict[str, Any] = {"auto": f"the first of {', '.join(registry.AUTO)} that connects a pair of ranks"}
    broken = []
    for scheme in registry.schemes():
        is_library = scheme in registry.LIBRARIES
        if is_library and wanted != scheme:
            continue  # `gpus` reports on it
        tried = engine and not is_library and scheme in (*registry.AUTO, wanted)
        reason = registry.available(scheme) or (_attempt(scheme, ranks) if tried else None)
        facts[scheme] = reason or ("works" if tried else "available, not tried")
        expected = scheme in registry.AUTO and scheme != "verbs"  # few machines have RDMA
        if reason is not None and (expected or scheme == wanted):
            broken.append(scheme)
    problems = []
    if wanted != "auto" and wanted not in facts:
        text = f"transport {wanted!r} is not known{hint(wanted, ('auto', *facts))}"
        problems.append(Problem("broken", text, f"set COLLECTIVES_TRANSPORT to one of auto, {', '.join(facts)}"))
    for scheme in broken:
        # Without shared memory, ranks of one host are linked over TCP. Without TCP, ranks of different hosts cannot be.
        fatal = scheme == wanted or (wanted == "auto" and scheme == "tcp")
        advice = (
            "use another one: COLLECTIVES_TRANSPORT=auto" if scheme == wanted else f"until then {scheme} is not used"
        )
        problems.append(Problem("broken" if fatal else "hint", f"{scheme}: {facts[scheme]}", advice))
    return Section("transports", facts, problems)


def store(url: str | None, key: bytes | None, launcher: str) -> Section:
    """The part of the report of `collectives doctor` about the store at `url`, through which ranks find each other.

    Writes, reads and deletes a value there, within a time limit. `key`: the job's secret, None without one. `launcher`:
    the name of the launcher that started this process.
    """
    if not url:
        return Section("store", {"url": "none given: --store URL tries one"})
    facts: dict[str, Any] = {"url": without_password(url)}
    if url.startswith("mpi:") and launcher not in ("openmpi", "pmi", "mpi"):
        return Section("store", {**facts, "tried": "no: that needs the job's mpiexec"})
    began = time.monotonic()
    try:
        facts["served by"] = _use(url, key)
    except (ValueError, CollectiveError) as error:
        cause = error.__cause__
        if url.startswith("tcp:") and isinstance(cause, OSError) and cause.errno == errno.EADDRNOTAVAIL:
            facts["tried"] = "nobody serves it now; rank 0 will, on the host of that address, once the job starts"
            return Section("store", facts)
        advice = "see that it runs and can be reached from here, and that password and certificates are right"
        if isinstance(error, ValueError):
            advice = "correct the URL, or give what it asks for"
        return Section("store", facts, [Problem("broken", without_password(str(error)), advice)])
    facts["tried"] = f"set, get and delete work; {(time.monotonic() - began) * 1e3:.1f} ms with connecting"
    return Section("store", facts)


def _use(url: str, key: bytes | None) -> str:
    """Try the store at `url` with the job's secret `key`; returns what serves the store. Raises the store's errors."""
    if url.startswith("tcp:"):
        try:
            _exchange(url, key, host=False, limit=1.0)
            return "a running job"
        except StoreError:  # no server yet, as before a job
            _exchange(url, key, host=True, limit=LIMIT)
            return "rank 0, on this host, once the job starts"
    with _as_it_was(unquote(urlsplit(url).path) if url.startswith("file:") else ""):
        _exchange(url, key, host=False, limit=LIMIT)
    return "this process" if url.startswith("memory:") else "the file system" if url.startswith("file:") else "a server"


def _exchange(url: str, key: bytes | None, host: bool, limit: float) -> None:
    deadline = Deadline(limit)
    opened = open_store(url, timeout=limit, host=host, secret=key)
    try:
        name, value = f"doctor/{secrets.token_hex(8)}", secrets.token_bytes(8)
        opened.set(name, value, deadline.left)
        got = opened.get(name, deadline.left)
        gone = opened.delete([name], deadline.left)
        if got != value or gone != 1:
            raise StoreError(f"{opened!r} does not keep what it is given")
    finally:
        opened.close()


@contextlib.contextmanager
def _as_it_was(folder: str) -> Iterator[None]:
    """On exit, removes those directories of the path `folder` that did not exist on entry, if they are empty."""
    missing = [path for path in (Path(folder), *Path(folder).parents) if folder and not path.exists()]
    try:
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()


def _attempt(scheme: str, ranks: int) -> str | None:
    """Why an allreduce between two ranks in this process fails over the transport `scheme`; None if it works."""
    policy = Policy(scheme, Scope(network=False, ranks=ranks), secrets.token_bytes(job_secret.SIZE))
    run, wrong = secrets.token_hex(16), list[str]()
    endpoints: list[Endpoints] = []

    def rank(number: int) -> None:
        try:
            deadline = Deadline(LIMIT)
            members = [one.member for one in endpoints]
            linked = link(number, members, endpoints[number], policy, context(run, 0, "0"), 0, deadline)
            with Communicator(number, linked, Origin(run, 0, "0", policy), "doctor", LIMIT, lambda: None) as comm:
                total = comm.allreduce(np.full(1 << 16, number + 1.0), timeout=deadline.left)
                comm.barrier(timeout=deadline.left)
                if not (total == 3).all():
                    wrong.append("an allreduce gave a wrong result")
        except Exception as error:  # any error belongs into the report
            wrong.append(f"{type(error).__name__}: {error}")

    try:
        endpoints += [Endpoints(policy) for _ in range(2)]
    except (CollectiveError, OSError) as error:
        wrong.append(str(error))
    else:
        threads = [Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for one in endpoints:
        one.close()
    return wrong[0] if wrong else None
