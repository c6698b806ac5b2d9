"""RDMA ports, and programs that time messages between two processes themselves, such as those of perftest.

Invariant: a rank starts the program anew for each turn, rank 1 as the server, and both ranks report the times that the
program has measured at rank 0. The program sends one message at a time, back and forth. Its time is that of one message
in one direction, with as many bytes as the collective's bus bandwidth counts. A collective of two ranks cannot be
faster, since some rank has to receive so many bytes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Any, Final, NamedTuple

from collectives.bench.cases import Case

FEWEST: Final = 5  # iterations that such a program accepts
_PATIENCE: Final = 60.0  # seconds
_AGAIN: Final = 0.1  # seconds between attempts to reach the server, which does not say when it listens
_HERE: Final = "127.0.0.1"
_DEVICES: Final = Path("/sys/class/infiniband")
_IPV4: Final = "0000:0000:0000:0000:0000:ffff:"


class Port(NamedTuple):
    """An active port 1 of an RDMA device. `address`: the index of its address, None over InfiniBand."""

    device: str
    address: int | None


class Program(NamedTuple):
    """How to run a program that times messages.

    - `name`, `package`: the program, and what has to be installed for it
    - `command(port, nbytes, iterations)` returns the options of both ranks, without those below
    - `at(number)` returns the options for the number of the TCP port at which the two processes meet
    - `environment(port)` returns the environment variables with which it uses the RDMA port `port`
    - `times(output)` returns the seconds of messages in the output of rank 0
    """

    name: str
    package: str
    command: Callable[[Port, int, int], list[str]]
    at: Callable[[int], list[str]]
    environment: Callable[[Port], Mapping[str, str]]
    times: Callable[[str], list[float]]


def ports() -> list[Port]:
    """The active ports of this machine, one for each device."""
    found = []
    for device in sorted(_DEVICES.glob("*")):
        port = device / "ports" / "1"
        if "ACTIVE" in _text(port / "state"):
            found.append(Port(device.name, None if "InfiniBand" in _text(port / "link_layer") else _address(port)))
    return found


def port_of(rank: int) -> Port | None:
    """The port that rank `rank` uses: ranks use different ports, if there are several. None if there are none."""
    known = ports()
    return known[rank % len(known)] if known else None


class Member:
    """One rank of a program that times messages."""

    def __init__(self, folder: str, ranks: int, rank: int | None, program: Program) -> None:
        """Raises FileNotFoundError if there is no such program here, or no active RDMA port."""
        assert rank is not None
        port = port_of(rank)
        if which(program.name) is None:
            raise FileNotFoundError(f"there is no {program.name} here: apt-get install {program.package}")
        if port is None:
            raise FileNotFoundError(f"there is no active RDMA port here ({_DEVICES})")
        self.rank: Final = rank
        self._ranks: Final = ranks
        self._folder: Final = Path(folder)
        self._program: Final = program
        self._port: Final = port
        self._turn = 0

    def barrier(self) -> None:
        """Does nothing: the program's two processes wait for each other."""

    def task(self, case: Case) -> Message:
        if self._ranks != 2:
            raise NotImplementedError("it sends messages between two ranks, not more")
        nbytes = round(case.nbytes * case.kind.factor(2))
        if nbytes < 1:
            raise NotImplementedError("it sends messages of one byte or more")
        return Message(self, nbytes)

    def close(self) -> None:
        """Does nothing: no program runs between two turns."""

    def times(self, nbytes: int, iterations: int) -> list[float]:
        """Run the program once. Returns the seconds of messages of `nbytes` bytes, the same on both ranks."""
        self._turn += 1
        meeting, measured = (self._folder / f"{name}{self._turn}" for name in ("port", "times"))
        program = self._program
        command = [program.name, *program.command(self._port, nbytes, max(iterations, FEWEST))]
        environment = {**os.environ, **program.environment(self._port)}
        if self.rank == 1:
            with socket.create_server((_HERE, 0)) as free:
                number = free.getsockname()[1]
            done = _started([*command, *program.at(number)], environment, lambda: _write(meeting, str(number)))
            if done.returncode:
                raise RuntimeError(_why(command, done))
            return [float(seconds) for seconds in json.loads(_read(measured))]
        number = int(_read(meeting))
        end = time.monotonic() + _PATIENCE
        while True:
            done = subprocess.run(
                [*command, *program.at(number), _HERE],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
            found = [] if done.returncode else program.times(done.stdout)
            if found:
                _write(measured, json.dumps(found))
                return found
            if time.monotonic() > end:
                raise RuntimeError(_why(command, done))
            time.sleep(_AGAIN)


class Message:
    """A message that a program sends back and forth. The program measures its time."""

    def __init__(self, member: Member, nbytes: int) -> None:
        self._member: Final = member
        self._nbytes: Final = nbytes

    def call(self) -> Any:
        self.times(1)

    def times(self, iterations: int) -> list[float]:
        return self._member.times(self._nbytes, iterations)

    def wrong(self, salt: int) -> int:
        """Returns 0: the program computes nothing that could be checked."""
        return 0


def _started(
    command: Sequence[str], environment: Mapping[str, str], then: Callable[[], None]
) -> subprocess.CompletedProcess[str]:
    """Start a process, call `then`, and wait until the process has ended."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        then()
        output, errors = process.communicate(timeout=2 * _PATIENCE)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _why(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> str:
    words = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"`{' '.join(command)}` ended with code {done.returncode}: {' | '.join(words[-3:])}"


def _address(port: Path) -> int | None:
    """The index of the port's address with which other hosts reach it best: RoCE v2 with an IPv4 address, if any."""
    best: tuple[int, int] | None = None
    for file in sorted((port / "gids").glob("*"), key=lambda file: int(file.name)):
        gid, kind = _text(file), _text(port / "gid_attrs" / "types" / file.name)
        if gid.strip("0:"):
            worth = 2 * ("v2" in kind) + gid.startswith(_IPV4)
            if best is None or worth > best[0]:
                best = worth, int(file.name)
    return None if best is None else best[1]


def _text(file: Path) -> str:
    """What a file of the kernel says; "" if it says nothing, as for an empty place in a table of addresses."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _write(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def _read(file: Path) -> str:
    """The text that the other rank writes into `file`."""
    end = time.monotonic() + 2 * _PATIENCE
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"the other rank has not written {file.name}")
        time.sleep(0.01)
    return file.read_text()
