"""NCCL as calls on arrays in CUDA memory know it: its collectives, and its communicator once ranks have made it.

Invariant: nothing here calls NCCL.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from collectives.calls.moves import Deadline
from collectives.native import _engine

ENGINE: Final = "nccl"
HIERARCHY: Final = "hierarchy"  # NCCL inside hosts, and host memory between them: `hierarchical.py`
# The collectives that NCCL runs. For each: whether it reduces.
COLLECTIVES: Final = {
    "allreduce": True,
    "reduce": True,
    "reduce_scatter": True,
    "broadcast": False,
    "allgather": False,
    "gather": False,
    "scatter": False,
    "alltoall": False,
}
KINDS: Final = (*COLLECTIVES, "send", "recv")  # NCCL's functions


class Formed(NamedTuple):
    """NCCL's communicator, or the reason why it cannot be used; all ranks have the same reason.

    `problem`: this reason, or "". `version`: NCCL's version. `capability`: the lowest compute capability of all ranks'
    devices, 90 for 9.0. `compiler`: the path of the library that compiles this rank's kernels. `no_compiler`: why some
    rank has no such library, "" if all have one.
    """

    problem: str
    member: _engine.NcclMember | None = None
    version: int = 0
    capability: int = 0
    compiler: str = ""
    no_compiler: str = ""


class Form(Protocol):
    """Makes NCCL's communicator, together with all other ranks."""

    def __call__(self, device: int, wrong: Exception | None, deadline: Deadline) -> Formed:
        """`wrong`: an error in this rank's call, or None. This rank raises it, and all others raise Aborted.

        Also raises the errors of the communicator's calls.
        """


class Hierarchy(Protocol):
    """Calls that run by NCCL inside hosts, and through host memory between them."""

    def why_not(self, name: str, dtype: str, op: str) -> str:
        """Returns why such a call does not run in two levels, inside and between hosts; "" if it does."""

    @property
    def memory(self) -> int:
        """Bytes of the device's memory that NCCL's communicator of this host holds."""
