"""Peers: other systems that are measured for comparison, each in processes of its own, with a Python of its own.

Invariant: each peer is one module in this folder. The benchmark reads from the module what to install and which
processes to start. These processes, the workers, load the module to call the system. The module imports only those
modules of this library that need nothing but NumPy.

The module of each peer in `NAMES` has

    ENVIRONMENT                             name of its virtual environment; peers with the same name share one
    REQUIREMENTS                            packages to install, pinned, besides NumPy; nothing is installed for a
                                            peer that has neither these nor the following
    BARE                                    packages to install without their dependencies
    commands(python, worker, ranks)         the processes to start; `worker`: the arguments for `python`
    environment(folder)                     environment variables for the workers; `folder`: an empty folder for them
    connect(folder, ranks, rank) -> Member  called in a worker, to join the other ranks

The peers in `HOOKS` and `ON_DEVICES` are not installed: they use the packages of the interpreter that runs the
benchmark. Their `connect` returns a `FrameworkRank`, which has `task` instead of `empty` and `bind`. The peers in
`HOOKS` call a framework as its users do, those in `ON_DEVICES` run collectives on arrays in CUDA memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

NAMES: Final = (
    *("gloo", "openmpi", "openmpi-tcp", "openmpi-ucx", "mpich", "impi", "tensorflow"),
    "perftest",  # between two ranks
)
ON_DEVICES: Final = ("nccl", "torch-nccl", "cupy")
HOOKS: Final = ("hook-tensorflow", "ring-tensorflow", "hook-torch", "gloo-torch")


class Member(Protocol):
    """One rank of another library that the benchmark measures, such as Open MPI, in a process of its own."""

    @property
    def rank(self) -> int: ...
    def empty(self, elements: int, dtype: Any) -> Any:
        """Allocate an array of `elements` elements, in the way in which users of a library such as Open MPI do it."""

    def barrier(self) -> None: ...
    def bind(self, case: Any, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        """Return a function that runs the collective `case` on the input `inp`, and the array that receives its result.

        This array is `inp` or `out`. It is None if the function returns its result, as an object with the buffer
        protocol. Raises: NotImplementedError if the library that is measured does not support the collective.
        """

    def close(self) -> None: ...


class Task(Protocol):
    """A collective that is ready to be run and timed, in the process of another library such as Open MPI.

    The other library has allocated the arrays.
    """

    def call(self) -> Any: ...
    def wrong(self, salt: int) -> int:
        """Run the measured collective once on test data; return the number of wrong elements in this rank's result.

        `salt` selects the test data; each value gives other data.
        """

    # def renew(self) -> None: write the input, as if it had just been computed; only in tasks that can do this
    # def times(self, iterations) -> list[float]: run it so often, and return the seconds that it has measured itself;
    #     only in tasks that are programs with a clock of their own
    # def settle(self) -> None: wait until the calls are complete; only in tasks whose calls return before


class FrameworkRank(Protocol):
    """One rank of an ML framework whose gradient allreduce is measured, or of a library for arrays on CUDA devices.

    A framework's rank uses the framework's own allreduce, or this library's hook for the framework.
    """

    @property
    def rank(self) -> int: ...
    def barrier(self) -> Any: ...
    def task(self, case: Any) -> Task:
        """Prepare what `case` describes: a collective, the allreduce of a model's gradients, or a training step.

        Raises: NotImplementedError if the framework or library does not support `case`.
        """

    def close(self) -> None: ...


class Peer(Protocol):
    """The names that a module in bench/peers has to define, so that the benchmark can measure another library."""

    ENVIRONMENT: str
    REQUIREMENTS: tuple[str, ...]
    BARE: tuple[str, ...]

    def commands(self, python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]: ...
    def environment(self, folder: str) -> dict[str, str]: ...
    def connect(self, folder: str, ranks: int, rank: int | None) -> Member | FrameworkRank: ...


def peer(name: str) -> Peer:
    """Return the module for measuring the library `name`, such as "openmpi".

    Raises: ValueError, with a list of the names, if the name is unknown.
    """
    if name not in (*NAMES, *ON_DEVICES):
        from collectives.native.spelling import (
            hint,
        )  # not at the head: workers import this file, too, and have only NumPy

        known = (*NAMES, *ON_DEVICES)
        raise ValueError(f"there is no peer {name!r}{hint(name, known)}; there are {', '.join(known)}")
    return system(name)


def system(name: str) -> Peer:
    """Return the module for measuring the library or hook `name`, one of `NAMES`, `ON_DEVICES` or `HOOKS`."""
    return cast(Peer, importlib.import_module(module(name)))


def module(name: str) -> str:
    """Return the full name of the Python module for measuring the library `name`, such as "openmpi"."""
    return f"collectives.bench.peers.{name.replace('-', '_')}"
