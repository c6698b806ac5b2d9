"""Ranks that run one program each, linked by verbs, for tests that need more than a case of a collective.

Invariant: a program that does not end in time is ended, and everything that ranks have printed is shown.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from collectives.rendezvous import secret
from tests.warm.parents import python

ROOT = Path(__file__).resolve().parents[2]
SILENT = 240.0  # seconds: the processor of the VM is emulated
_jobs = itertools.count()

BEGIN = """\
import faulthandler, json, os, signal, sys, time
import numpy as np
import collectives

faulthandler.register(signal.SIGUSR1, all_threads=True)
rank, size = int(os.environ["TEST_RANK"]), int(os.environ["TEST_SIZE"])
comm = collectives.init(os.environ["TEST_STORE"], rank=rank, size=size, name=os.environ["TEST_NAME"], timeout=60.0,
                        transport=os.environ["TEST_TRANSPORT"])


def counts():
    total = {}
    for link in comm.dump()["links"]:
        for name, value in link["counts"].items():
            total[name] = total.get(name, 0) + value
    return total


def say(value):
    print(json.dumps(value), flush=True)

"""


@contextmanager
def started(
    program: str,
    size: int,
    folder: Path,
    transport: str = "verbs",
    prefixes: Sequence[Sequence[str]] | None = None,
    **variables: str,
) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each rank, which has `comm`, `counts` and `say` (a line of JSON).

    `prefixes`: for each rank, what stands in front of its command.
    """
    key = folder / "secret"
    secret.write(key, secret.mint())
    name = f"program{next(_jobs)}"
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(size):
            environment = {
                **os.environ,
                "TEST_RANK": str(rank),
                "TEST_SIZE": str(size),
                "TEST_STORE": (folder / "store").as_uri(),
                "TEST_NAME": name,
                "TEST_TRANSPORT": transport,
                "COLLECTIVES_SECRET_FILE": str(key),
                "OMP_NUM_THREADS": "1",
                **variables,
            }
            command = [*prefixes[rank], sys.executable] if prefixes else [python(environment)]
            ranks.append(
                subprocess.Popen(
                    [*command, "-c", BEGIN + textwrap.dedent(program)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    env=environment,
                )
            )
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                assert stream is not None
                stream.close()


def said(ranks: Sequence[subprocess.Popen[str]], rank: int, limit: float = SILENT) -> Any:
    """What that rank says next. After `limit` seconds of silence, all ranks are ended, and say where they were."""
    out, errors = ranks[rank].stdout, ranks[rank].stderr
    assert out is not None and errors is not None
    late = threading.Timer(limit, _end, [ranks])
    late.start()
    try:
        line = out.readline()
    finally:
        late.cancel()
    if not line:
        raise AssertionError(f"rank {rank} ended: {errors.read()[-5000:]}")
    return json.loads(line)


def _end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    """End the ranks that still run, which write the stacks of their threads to stderr before."""
    running = [process for process in ranks if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGUSR1)
    time.sleep(2.0)
    for process in running:
        process.kill()


def go_on(ranks: Sequence[subprocess.Popen[str]]) -> None:
    """Each of these ranks reads a line."""
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()


class Outcome(NamedTuple):
    """How a rank's process has ended. A status of None: it had to be ended, since it took too long."""

    status: int | None
    out: str
    errors: str


def outcomes(
    program: str,
    size: int,
    folder: Path,
    within: float = 200.0,
    transport: str = "verbs",
    prefixes: Sequence[Sequence[str]] | None = None,
    **variables: str,
) -> list[Outcome]:
    """How each rank has ended."""
    deadline = time.monotonic() + within
    found = []
    with started(program, size, folder, transport, prefixes, **variables) as ranks:
        for process in ranks:
            status: int | None
            try:
                out, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
                status = process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                out, errors = process.communicate()
                errors += f"not ended within {within:g} s"
                status = None
            found.append(Outcome(status, out, errors))
    return found


def run(
    program: str,
    size: int,
    folder: Path,
    within: float = 200.0,
    transport: str = "verbs",
    prefixes: Sequence[Sequence[str]] | None = None,
    **variables: str,
) -> list[list[Any]]:
    """What each rank has said, after all have ended without an error."""
    ended = outcomes(program, size, folder, within, transport, prefixes, **variables)
    wrong = "".join(
        f"rank {rank}: status {one.status}\n{one.out}{one.errors}\n"
        for rank, one in enumerate(ended)
        if one.status != 0
    )
    assert not wrong, wrong
    return [[json.loads(line) for line in one.out.splitlines()] for one in ended]
