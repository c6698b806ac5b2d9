"""Run functions at the same time, as threads, and collect what became of them.

Invariant: all threads have ended when `together` returns, and no error is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """What one function returned or raised, and after how many seconds."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.error: BaseException | None = None
        self.seconds = 0.0

    @property
    def value(self) -> T:
        if self.error is not None:
            raise self.error
        return self.values[0]


def together(functions: Sequence[Callable[[], T]], *, limit: float = 100.0) -> list[Outcome[T]]:
    """Start all at one moment; their outcomes, in order."""
    outcomes: list[Outcome[T]] = [Outcome() for _ in functions]
    gate = threading.Barrier(len(functions))

    def run(function: Callable[[], T], outcome: Outcome[T]) -> None:
        gate.wait(limit)
        start = time.monotonic()
        try:
            outcome.values.append(function())
        except BaseException as error:
            outcome.error = error
        outcome.seconds = time.monotonic() - start

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(functions, outcomes, strict=True)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"threads still run after {limit} s"
    return outcomes


def background(function: Callable[[], T]) -> tuple[threading.Thread, Outcome[T]]:
    """Start one and go on; the caller joins the thread."""
    outcome: Outcome[T] = Outcome()

    def run() -> None:
        start = time.monotonic()
        try:
            outcome.values.append(function())
        except BaseException as error:
            outcome.error = error
        outcome.seconds = time.monotonic() - start

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome
