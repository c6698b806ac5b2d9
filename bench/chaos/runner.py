"""Makes runs, one after another, in a process that has imported everything and has one thread.

Invariant: a unit gives a finding, whatever happens in its run.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from collectives.bench.chaos.case import Case, Finding, Unit
from collectives.bench.chaos.judging import judge
from collectives.bench.chaos.run import NOT_FOR_RANKS, STOP, NotReached, Run
from collectives.bench.chaos.servers import Redis, why_no_redis
from collectives.bench.namespaces import Host, hosts, why_not


def perform(units: Iterable[Unit], cases: Iterable[Case]) -> Iterator[Finding]:
    """Make all runs with injected faults in `units`, one after the other, and yield the result of each.

    `cases` are the kinds of faults. Resources that several runs use, such as network namespaces, are created only once.
    """
    by_name = {case.name: case for case in cases}
    _load()
    with ExitStack() as opened:
        shared = _Shared(opened)
        for unit in units:
            case = by_name[unit.case]
            absent = why_absent(case, unit)
            yield Finding(unit, absent=absent) if absent else _one(case, unit, shared)


def why_absent(case: Case, unit: Unit) -> str | None:
    """Return the reason why the run `unit`, with a fault of the kind `case`, is impossible on this machine.

    Return None if the run is possible.
    """
    if unit.transport not in case.transports:
        if unit.transport == "inproc":
            return "over inproc the ranks are threads of one process, to which this cannot happen separately"
        if case.hosts:
            return "ranks on several hosts share no memory"
        return f"this case is not for {unit.transport}"
    if case.hosts and (reason := why_not()):
        return reason
    if (case.servers or unit.store == "redis") and (reason := why_no_redis()):
        return reason
    return case.why_not()


class _Shared:
    """What runs use together: hosts, one set for each number of ranks, and a Redis server."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._hosts: dict[int, list[Host]] = {}
        self._redis: Redis | None = None

    def hosts(self, count: int) -> list[Host]:
        if count not in self._hosts:
            self._hosts[count] = self._opened.enter_context(hosts(count))
        return self._hosts[count]

    @property
    def redis(self) -> Redis:
        if self._redis is None:
            self._redis = self._opened.enter_context(Redis())
        return self._redis


def _one(case: Case, unit: Unit, shared: _Shared) -> Finding:
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="collectives-chaos-")))
        server = None
        if case.servers:
            server = opened.enter_context(Redis())
        elif unit.store == "redis":
            server = shared.redis
        if unit.transport == "inproc":
            url = f"memory://{folder.name}"
        else:
            url = server.url if server else (folder / "store").as_uri()
        run = Run(case, unit, url, (), server)
        if case.hosts:
            run.hosts = shared.hosts(run.size)
        segments = _segments()
        problem = ""
        opened.callback(run.end)
        try:
            run.fork()
            run.go()
            case.inject(run)
        except (NotReached, OSError) as error:
            problem = f"the fault was not injected: {error}"
        # Those that never got to the fault are not given time to end by themselves.
        over = run.finished(1.0 if problem else case.limit)
        hung = [m.number for m in run.members if m.status is None and not m.stopped] if not over else []
        run.end()
        left = [f"/dev/shm/{name}" for name in _segments() - segments]
        if not case.keys_stay:
            left += _kept(folder, server)
        finding = judge(run, hung, left)
        if problem:
            finding.problems.insert(0, problem)
        if server is not None and not case.servers:
            server.clear()
        return finding


def _kept(folder: Path, server: Redis | None) -> list[str]:
    files = [path for path in (folder / "store").rglob("*") if not path.is_dir()]
    found = [f"{len(files)} files in the store, such as {files[0].name}"] if files else []
    if server is not None and (keys := server.keys()):
        found.append(f"{len(keys)} keys in the store, such as {keys[0]}")
    return found


def _segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("*collectives*")}


def _load() -> None:
    """Import and read all that ranks use, such as the metadata of packages, so that forked ranks need not."""
    import numpy as np

    import collectives
    import collectives.core.init
    import collectives.rendezvous.file
    import collectives.rendezvous.redis
    from collectives.base.version import library_version
    from collectives.engines import registered

    library_version()
    registered()
    np.ones(1).sum()
    for scheme in ("inproc", "shm", "tcp"):
        collectives.transports.registry.transport(scheme).available()
    gc.collect()
    gc.freeze()
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("the process that forks ranks has more than one thread; set OPENBLAS_NUM_THREADS=1")


def main(given: dict[str, Any], out: int) -> None:
    """Make the runs with injected faults that `given` lists, and write their results to the file descriptor `out`.

    Each result is one line of JSON.
    """
    import importlib
    import json
    import signal
    from dataclasses import asdict

    # Ranks, hosts and servers are removed before this process ends. An exception from here might be lost in a fork.
    signal.signal(signal.SIGTERM, lambda *_: STOP.append(True))
    NOT_FOR_RANKS.append(out)
    cases: Sequence[Case] = importlib.import_module(given["cases"]).CASES
    units = [Unit(**unit) for unit in given["units"]]
    for finding in perform(units, cases):
        os.write(out, (json.dumps(asdict(finding)) + "\n").encode())
