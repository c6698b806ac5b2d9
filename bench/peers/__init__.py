"""Peers: other systems that are measured for comparison, each in processes of its own, with a Python of its own.

Invariant: a peer is one file here. The benchmark reads from it what to install and how to start; the peer's processes,
the workers, load it to call the system. A peer's file imports only those modules of this library that need nothing but
NumPy.

A peer's module has

    ENVIRONMENT                             name of its virtual environment; peers with the same name share one
    REQUIREMENTS                            packages to install, pinned, besides NumPy
    BARE                                    packages to install without their dependencies
    commands(python, worker, ranks)         the processes to start; `worker` are the arguments for `python`
    environment(folder)                     environment variables for the workers; `folder` is empty and only for them
    connect(folder, ranks, rank) -> Member  in a worker: join the other ranks

and a line in `NAMES`. The peers in `HOOKS` are not installed: they use the packages of the interpreter that runs the
benchmark, and call a framework as its users do. Their members have the method `task` instead of `empty` and `bind`.
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
        """The call for a `Case`, and the array that holds the result of the call: `inp` or `out`.

        None instead of the array if the call returns its result, as an object with the buffer protocol. Raises
        NotImplementedError for cases that this system does not support.
        """

    def close(self) -> None: ...


class Task(Protocol):
    """A case that is ready to be called, with arrays of the system's own."""

    def call(self) -> Any: ...
    def wrong(self, salt: int) -> int:
        """Call with values chosen by `salt`; returns the number of wrong elements in this rank's result."""

    # def renew(self) -> None: write the input, as if it had just been computed; only in tasks that can do this


class Tasker(Protocol):
    """One rank of a group that runs whole cases, such as a list of gradients or a step of training."""

    @property
    def rank(self) -> int: ...
    def barrier(self) -> Any: ...
    def task(self, case: Any) -> Task:
        """Prepare a case. Raises NotImplementedError if this system does not support it."""

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
    """The module of a peer that can be installed; for an unknown name, a ValueError lists these peers."""
    if name not in NAMES:
        from collectives.native.spelling import (
            hint,
        )  # not at the head: workers import this file, too, and have only NumPy

        raise ValueError(f"there is no peer {name!r}{hint(name, NAMES)}; there are {', '.join(NAMES)}")
    return system(name)


def system(name: str) -> Peer:
    """The module of one of `NAMES` or `HOOKS`."""
    return cast(Peer, importlib.import_module(module(name)))


def module(name: str) -> str:
    """The name by which that peer's module is imported."""
    return f"collectives.bench.peers.{name.replace('-', '_')}"
