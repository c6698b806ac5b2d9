"""Ranks that run cases on command: as threads here, or as processes that stay for the whole session.

Invariant: every command is answered within a deadline; a rank that does not answer is ended, and named.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.warm.parents import python

ROOT = Path(__file__).resolve().parents[3]
OPERATION = 20.0  # seconds for one collective
ANSWER = 100.0  # seconds for one command


@dataclass(frozen=True)
class Job:
    """A group to form; everything about it that is the same on all ranks."""

    store: str
    transport: str
    size: int
    name: str
    secret: str = ""  # path
    segment: int | None = None  # bytes

    def command(self, rank: int) -> dict[str, Any]:
        return {
            "do": "join",
            "store": self.store,
            "transport": self.transport,
            "size": self.size,
            "rank": rank,
            "name": self.name,
            "secret": self.secret,
            "segment": self.segment,
        }


class Rank(Protocol):
    def ask(self, command: dict[str, Any]) -> None: ...
    def answer(self, within: float) -> Any: ...


class ProcessRank:
    """A worker process; one command is a line of JSON, and so is its answer."""

    def __init__(self, number: int, prefix: Sequence[str] = (), site: Path | None = None) -> None:
        """`prefix`: what stands in front of the command, where it is to run elsewhere; `site`: where packages are."""
        places = [str(ROOT), str(site or ""), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, places))
        settings = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.number = number
        self._process = subprocess.Popen(
            [*prefix, python(settings), "-m", "tests.collectives.conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=settings,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.decode())
        self._answers.put("")

    def ask(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, within: float = ANSWER) -> Any:
        try:
            line = self._answers.get(timeout=within)
        except queue.Empty:
            self._process.kill()
            raise AssertionError(f"worker {self.number} gave no answer within {within:g} s") from None
        if not line:
            raise AssertionError(f"worker {self.number} ended with status {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._process.stdout.close()


class ThreadRank:
    """The same as a thread of this process."""

    def __init__(self) -> None:
        from tests.collectives.conformance.worker import serve

        self._commands: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(
            target=lambda: serve(iter(self._commands.get, None), self._answers.put), daemon=True
        )
        self._thread.start()

    def ask(self, command: dict[str, Any]) -> None:
        self._commands.put(command)

    def answer(self, within: float = ANSWER) -> Any:
        try:
            return self._answers.get(timeout=within)
        except queue.Empty:
            raise AssertionError(f"a rank's thread gave no answer within {within:g} s") from None

    def end(self) -> None:
        self._commands.put(None)
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def processes(prefixes: Sequence[Sequence[str]], site: Path | None = None) -> Iterator[list[ProcessRank]]:
    """One for each prefix, in that order. `site`: a folder of packages that they find."""
    ranks: list[ProcessRank] = []
    try:
        for number, prefix in enumerate(prefixes):
            ranks.append(ProcessRank(number, prefix, site))
        for rank in ranks:  # a forked one is there before the test begins, which must leave no process behind
            assert rank.answer() == "begun"
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


@contextmanager
def threads(count: int) -> Iterator[list[ThreadRank]]:
    ranks = [ThreadRank() for _ in range(count)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def everyone(ranks: Sequence[Rank], commands: Sequence[dict[str, Any]], within: float = ANSWER) -> list[Any]:
    """Every rank's answer to its command; each must come within so many seconds."""
    for rank, command in zip(ranks, commands, strict=True):
        rank.ask(command)
    return [rank.answer(within) for rank in ranks]


def failures(answers: Sequence[list[str]]) -> str:
    """What the ranks complain about, a line each."""
    return "\n".join(f"rank {rank}: {text}" for rank, answer in enumerate(answers) for text in answer)
