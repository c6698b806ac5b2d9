"""Other systems, run beside ours for comparison: each in processes of its own, with a Python of its own.

Invariant: a peer is one file here, which the benchmark reads for what to install and how to start, and its workers
load for how to call. Such a file imports nothing of ours but what needs only NumPy.

A peer's module has

    ENVIRONMENT                             the environment's name: peers of one name share what is installed there
    REQUIREMENTS                            what to install, pinned, besides NumPy
    BARE                                    what to install without the packages that it says it depends on
    commands(python, worker, ranks)         the processes to start; `worker` are the arguments for `python`
    environment(folder)                     variables that they need; `folder` is theirs alone, and empty
    connect(folder, ranks, rank) -> Member  in a worker: join the others

and its line in `NAMES`. Those in `HOOKS` are not installed: they are what the interpreter that runs the benchmark has,
and call it as a framework's users do. Their members have `task` in the place of `empty` and `bind`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

NAMES: Final = ("gloo", "openmpi", "openmpi-tcp", "mpich", "impi", "tensorflow")
HOOKS: Final = ("hook-tensorflow", "ring-tensorflow", "hook-torch", "gloo-torch")


class Member(Protocol):
    """One rank of the peer's group."""

    @property
    def rank(self) -> int: ...
    def empty(self, elements: int, dtype: Any) -> Any:
        """An array to pass to `bind`, as this system's users would make one."""

    def barrier(self) -> None: ...
    def bind(self, case: Any, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        """The call for a `Case`, and the array that holds its result: `inp` or `out`, or None if the
        call returns it, as an object with the buffer protocol.

        Raises NotImplementedError for what this system does not have.
        """

    def close(self) -> None: ...


class Task(Protocol):
    """A case made ready, in memory of the system's own."""

    def call(self) -> Any: ...
    def wrong(self, salt: int) -> int:
        """Call it with values chosen by `salt`: how many elements of this rank's result are wrong."""

    # def renew(self) -> None: write the input, as if it had just been computed; where the task can do that


class Tasker(Protocol):
    """One rank of a group that does cases as a whole, such as a list of gradients or a step of training."""

    @property
    def rank(self) -> int: ...
    def barrier(self) -> Any: ...
    def task(self, case: Any) -> Task:
        """Raises NotImplementedError for cases that this system does not support."""

    def close(self) -> None: ...


class Peer(Protocol):
    """The interface of a peer's module."""

    ENVIRONMENT: str
    REQUIREMENTS: tuple[str, ...]
    BARE: tuple[str, ...]

    def commands(self, python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]: ...
    def environment(self, folder: str) -> dict[str, str]: ...
    def connect(self, folder: str, ranks: int, rank: int | None) -> Member | Tasker: ...


def peer(name: str) -> Peer:
    """The module of a peer that can be installed; ValueError lists those there are."""
    if name not in NAMES:
        from collectives.native.spelling import hint  # workers, which have NumPy only, import this file

        raise ValueError(f"there is no peer {name!r}{hint(name, NAMES)}; there are {', '.join(NAMES)}")
    return system(name)


def system(name: str) -> Peer:
    """The module of one of `NAMES` or `HOOKS`."""
    return cast(Peer, importlib.import_module(module(name)))


def module(name: str) -> str:
    """Where that peer's file is imported from."""
    return f"collectives.bench.peers.{name.replace('-', '_')}"
