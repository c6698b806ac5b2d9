"""Runs a job as processes on this host: sets each rank's environment, and makes a private directory for all ranks.

Invariant: the job's secret exists only in a file of mode 0600 in a directory of mode 0700, never in an argument or a
log, and is removed when `launch` returns.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from collectives.commands.child import Process
from collectives.commands.supervise import Outcome, supervise
from collectives.core import losses
from collectives.rendezvous import secret

GRACE: Final = 5.0  # seconds: a rank whose peer is gone raises PeerLost at once, and may want to save something

PER_RANK: Final = frozenset(
    "COLLECTIVES_" + name
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NAME", "RUN_ID", "SECRET_FILE", "STORE", "LOSS_FILE")
)


@dataclass(frozen=True, slots=True)
class Job:
    """A request to `collectives run`: the command to run, the number of ranks, and how the ranks find each other.

    - `ranks`, `first`: this host starts `ranks` processes, whose ranks begin with `first`
    - `size`: the number of ranks on all hosts; 0 means `ranks`
    - `store`, `run_id`, `secret_file`: may be empty if this host starts all ranks; the launcher then makes its own
    - `bind`: bind each rank to cores of its own
    - `addresses`: "same" switches address randomisation (ASLR) off in all ranks; "random" does not change it
    - `grace`: seconds that the other ranks have to end after one rank has failed
    """

    command: Sequence[str]
    ranks: int
    first: int = 0
    size: int = 0
    name: str = "default"
    store: str = ""
    run_id: str = ""
    secret_file: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: bool = True
    bind: bool = False
    addresses: str = "random"
    grace: float = GRACE


def launch(job: Job) -> Outcome:
    """Starts all ranks of `job` on this host, waits until they have ended, and returns how the job ended.

    Call it from the main thread. Raises StartError if a program cannot be started, and OSError if the temporary
    directory cannot be made.
    """
    directory = tempfile.mkdtemp(prefix="collectives-")  # mode 0700
    try:
        return supervise(_processes(job, Path(directory)), directory, prefix=job.prefix, grace=job.grace)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _processes(job: Job, directory: Path) -> list[Process]:
    shared = _shared(job, directory)
    cores = sorted(os.sched_getaffinity(0))
    chosen = {**os.environ, **_threads(job, len(cores)), **job.environment}
    return [
        Process(
            rank=job.first + local,
            command=job.command,
            environment={
                **chosen,
                **shared,
                "COLLECTIVES_RANK": str(job.first + local),
                "COLLECTIVES_LOCAL_RANK": str(local),
                losses.VARIABLE: str(directory / f"loss-{local}"),
            },
            cores=_share(cores, local, job.ranks) if job.bind else None,
            same_addresses=job.addresses == "same",
            reads_input=job.first + local == 0,
        )
        for local in range(job.ranks)
    ]


def run_id(text: str) -> str:
    """Returns a run id of 32 hexadecimal digits: `text` itself if it has this form, otherwise a hash of `text`."""
    return text if re.fullmatch("[0-9a-f]{32}", text) else hashlib.sha256(text.encode()).hexdigest()[:32]


def chooses_threads(job: Job) -> bool:
    """Whether the launcher sets OMP_NUM_THREADS: yes if there are several ranks, and the user has not set it."""
    return job.ranks > 1 and "OMP_NUM_THREADS" not in {*os.environ, *job.environment}


def _threads(job: Job, cores: int) -> dict[str, str]:
    """Environment variables that unbuffer Python's output and limit the threads that libraries start in each rank."""
    chosen = {} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}
    if chooses_threads(job):
        chosen["OMP_NUM_THREADS"] = str(max(1, cores // job.ranks) if job.bind else 1)
    return chosen


def _share(cores: Sequence[int], local: int, ranks: int) -> frozenset[int]:
    return frozenset(cores[len(cores) * local // ranks : len(cores) * (local + 1) // ranks])


def _shared(job: Job, directory: Path) -> dict[str, str]:
    """The environment variables that are equal on all ranks; creates a secret and a store if `job` names none."""
    secret_file, store = job.secret_file, job.store
    if not secret_file:
        secret_file = str(directory / "secret")
        secret.write(secret_file, secret.mint())
    if not store:
        (directory / "store").mkdir(mode=0o700)
        store = (directory / "store").as_uri()
    return {
        "COLLECTIVES_SIZE": str(job.size or job.ranks),
        "COLLECTIVES_LOCAL_SIZE": str(job.ranks),
        "COLLECTIVES_NAME": job.name,
        "COLLECTIVES_RUN_ID": run_id(job.run_id) if job.run_id else secrets.token_hex(16),
        "COLLECTIVES_SECRET_FILE": secret_file,
        "COLLECTIVES_STORE": store,
    }
