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

and its line in `NAMES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

NAMES: Final = ("gloo", "openmpi", "openmpi-tcp", "mpich", "impi", "tensorflow")


class Member(Protocol):
    """One rank of the peer's group."""

    @property
    def rank(self) -> int: ...
    def empty(self, elements: int, dtype: Any) -> Any:
        """An array to pass to `bind`, as this system's users would make one."""

    def barrier(self) -> None: ...
    def bind(self, case: Any, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        """The call for a `bench.cases.Case`, and the array that holds its result: `inp` or `out`, or None where the
        call returns it, as an object with the buffer protocol.

        Raises NotImplementedError for what this system does not have.
        """

    def close(self) -> None: ...


class Peer(Protocol):
    """What a peer's module has to offer."""

    ENVIRONMENT: str
    REQUIREMENTS: tuple[str, ...]
    BARE: tuple[str, ...]

    def commands(self, python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]: ...
    def environment(self, folder: str) -> dict[str, str]: ...
    def connect(self, folder: str, ranks: int, rank: int | None) -> Member: ...


def peer(name: str) -> Peer:
    """The module of that peer; ValueError lists those there are."""
    if name not in NAMES:
        raise ValueError(f"there is no peer {name!r}; there are {', '.join(NAMES)}")
    return cast(Peer, importlib.import_module(module(name)))


def module(name: str) -> str:
    """Where that peer's file is imported from."""
    return f"bench.peers.{name.replace('-', '_')}"
