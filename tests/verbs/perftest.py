"""perftest, a program that is not ours, between the devices rxe0 and rxe1.

Invariant: whatever happens to one run, neither of its two processes outlives it.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.leftovers import marked

PORT = 18515  # where its servers listen
LISTENS = 60.0  # seconds until a server listens, where the processor is emulated
ENDS = 60.0  # seconds for one run
PAUSE = 3.0  # seconds between one run and the next, which leaves a processor to the tests


def figures(program: str, *options: str, begun: Callable[[int], None] = lambda _: None) -> list[float]:
    """The last line of figures that `program` (of perftest) prints, when rxe0 is connected to rxe1.

    `begun`: is given the id of each process. What the programs say is shown only if they fail.
    """
    common = [program, "-x", "1", "-F", *options]
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*common, "-d", "rxe1"], stdout=quiet, stderr=quiet) as server:
        try:
            begun(server.pid)
            _wait_for(server)
            command = [*common, "-d", "rxe0", "127.0.0.1"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
                try:
                    begun(client.pid)
                    out, _ = client.communicate(timeout=ENDS)
                finally:
                    client.kill()
            for end, process in (("client", client), ("server", server)):
                assert process.wait(ENDS) == 0, f"the {end} of {program} ended with status {process.returncode}: {out}"
        finally:
            server.kill()
    lines = [line for line in out.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
    return [float(word) for word in lines[-1].split()]


def _wait_for(server: subprocess.Popen[bytes]) -> None:
    """Waits until it listens, which it does not say."""
    until = time.monotonic() + LISTENS
    while not _listens():
        assert server.poll() is None, f"a server ended with status {server.returncode}"
        assert time.monotonic() < until, f"no server listens at port {PORT} after {LISTENS:g} s"
        time.sleep(0.1)


def _listens() -> bool:
    """Whether the kernel's tables have a socket that listens at this port."""
    listening = re.compile(rf" [0-9A-F]+:{PORT:04X} [0-9A-F]+:0000 0A ")
    return any(listening.search(Path("/proc/net", table).read_text()) for table in ("tcp", "tcp6"))


class Runs:
    """How often perftest has moved all of its data, and what went wrong, if anything did."""

    def __init__(self) -> None:
        self.complete = 0
        self.problem: Exception | None = None


@contextmanager
def again_and_again() -> Iterator[Runs]:
    """While this is open, perftest writes 6.4 MB over both devices every few seconds. Raises what went wrong there.

    Its processes belong to no single test.
    """
    runs, over = Runs(), threading.Event()
    program = ("ib_write_bw", "-s", "65536", "-n", "100")

    def write() -> None:
        try:
            while not over.wait(PAUSE):
                figures(*program, begun=marked().keep)
                runs.complete += 1
        except Exception as error:  # shown by whoever closes this
            runs.problem = error

    thread = threading.Thread(target=write, name="perftest")
    thread.start()
    try:
        yield runs
    finally:
        over.set()
        thread.join()
    if runs.problem:
        raise runs.problem
