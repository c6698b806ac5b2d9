"""Peers: other systems that are measured for comparison, each in processes of its own, with a Python of its own.

Invariant: each peer is one module in this folder. The benchmark reads from the module what to install and which
processes to start. These processes, the workers, load the module to call the system. The module imports only those
modules of this library that need nothing but NumPy.

The module of each peer in `NAMES` has

    ENVIRONMENT                             name of its virtual environment; peers with the same name share one
    REQUIREMENTS                            packages to install, pinned, besides NumPy
    BARE                                    packages to install without their dependencies
    commands(python, worker, ranks)         the processes to start; `worker`: the arguments for `python`
    environment(folder)                     environment variables for the workers; `folder`: an empty folder for them
    connect(folder, ranks, rank) -> Member  called in a worker, to join the other ranks

The peers in `HOOKS` are not installed: they use the packages of the interpreter that runs the benchmark, and call a
framework as its users do. Their `connect` returns a `Tasker`, which has `task` instead of `empty` and `bind`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

NAMES: Final = ("gloo", "openmpi", "openmpi-tcp", "mpich", "impi", "tensorflow")
HOOKS: Final = ("hook-tensorflow", "ring-tensorflow", "hook-torch", "gloo-torch")


class Member(Protocol):
    """One rank of a peer (another system that is measured), in a process of its own."""

    @property
    def rank(self) -> int: ...
    def empty(self, elements: int, dtype: Any) -> Any:
        """A new array for the call that `bind` makes, allocated as users of the peer (another system) would do it."""

    def barrier(self) -> None: ...
    def bind(self, case: Any, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        """Returns a function that makes the call of `case` on `inp`, and the array to which it writes: `inp` or `out`.

        None instead of the array if the function returns its result, as an object with the buffer protocol. Raises
        NotImplementedError for cases that the peer does not support.
        """

    def close(self) -> None: ...


class Task(Protocol):
    """A case (what is measured), ready to be called on arrays that the peer, another system, has made."""

    def call(self) -> Any: ...
    def wrong(self, salt: int) -> int:
        """Call once with input values chosen by `salt`; returns the number of wrong elements in this rank's result."""

    # def renew(self) -> None: write the input, as if it had just been computed; only in tasks that can do this


class Tasker(Protocol):
    """One rank of a peer in `HOOKS`: a framework's exchange of gradients, or our hook.

    A case is a list of gradients or a step of training.
    """

    @property
    def rank(self) -> int: ...
    def barrier(self) -> Any: ...
    def task(self, case: Any) -> Task:
        """Prepare a case (a list of gradients or a step of training).

        NotImplementedError if this system does not support it.
        """

    def close(self) -> None: ...


class Peer(Protocol):
    """The interface of a peer's module.

    A peer is another system that the benchmark measures, such as an MPI library.
    """

    ENVIRONMENT: str
    REQUIREMENTS: tuple[str, ...]
    BARE: tuple[str, ...]

    def commands(self, python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]: ...
    def environment(self, folder: str) -> dict[str, str]: ...
    def connect(self, folder: str, ranks: int, rank: int | None) -> Member | Tasker: ...


def peer(name: str) -> Peer:
    """The module of the peer (another measured system) `name`. ValueError, which lists `NAMES`, for other names."""
    if name not in NAMES:
        from collectives.native.spelling import (
            hint,
        )  # not at the head: workers import this file, too, and have only NumPy

        raise ValueError(f"there is no peer {name!r}{hint(name, NAMES)}; there are {', '.join(NAMES)}")
    return system(name)


def system(name: str) -> Peer:
    """The module of the peer (measured system) `name`, one of `NAMES` or `HOOKS`."""
    return cast(Peer, importlib.import_module(module(name)))


def module(name: str) -> str:
    """The name by which the module of the peer (another measured system) `name` is imported."""
    return f"collectives.bench.peers.{name.replace('-', '_')}"
