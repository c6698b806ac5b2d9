"""What the modules `hvd` of all frameworks share: init and shutdown, rank numbers, reductions, sets of ranks.

Invariant: functions such as `mpi_built` describe this library, which contains no MPI, Gloo or CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from collectives.horovod import elastic, world
from collectives.horovod.common.exceptions import HorovodInternalError
from collectives.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    forget_all,
    global_process_set,
    remove_process_set,
)
from collectives.horovod.reductions import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None) -> None:
    """Forms a communicator with the other ranks, as `collectives.init` does; later calls keep this communicator.

    `comm`: None uses the communicator that `collectives.init` has made; if there is none, `init` forms one of all
    ranks. With a list of rank numbers, only these ranks form the communicator, but all ranks have to call `init`. A
    collectives.Communicator is used as it is. `process_sets`: sets of ranks to register, as `add_process_set` does;
    "dynamic" has no effect, since sets can always be registered later.

    If `init` raises an error, it registers no set, and closes the communicators that it made. The errors are the
    errors of `collectives.init`.
    """
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f"process_sets must be a list of ProcessSets, or 'dynamic', not {process_sets!r}")
    wanted = () if process_sets is None or isinstance(process_sets, str) else process_sets
    given = [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in wanted]  # checked before ranks meet
    begun = world.begin(comm)
    added: list[ProcessSet] = []
    try:
        for process_set in given:
            added.append(add_process_set(process_set))
    except BaseException:
        for process_set in added:
            remove_process_set(process_set)
        if begun:
            world.end()
        raise


def shutdown() -> None:
    """Closes the communicators that `hvd.init` made. Operations of other ranks that wait for this rank then fail."""
    forget_all()
    world.end()


def is_initialized() -> bool:
    return world.exists()


# --- rank numbers and sizes; each function raises NotInitializedError before `init`


def rank() -> int:
    return world.current().comm.rank


def size() -> int:
    return world.current().comm.size


def local_rank() -> int:
    """This rank's number on its host."""
    return world.current().comm.local_rank


def local_size() -> int:
    """How many ranks are on this rank's host."""
    return world.current().comm.local_size


def cross_rank() -> int:
    """Returns the number of this rank's host, from 0, among the hosts that have a rank with the same local rank."""
    return world.current().cross_rank


def cross_size() -> int:
    """How many hosts have a rank with this local rank."""
    return world.current().cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    return world.current().homogeneous


# --- what the library contains


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    return False


def mpi_threads_supported() -> NoReturn:
    """Raises ValueError, as Horovod does where MPI is not in use."""
    raise ValueError(
        "MPI is not in use, whatever started the ranks: mpi4py in the same script may be used from any thread that it "
        "allows by itself"
    )


def gloo_enabled() -> bool:
    return False


def gloo_built() -> bool:
    return False


def nccl_built() -> int:
    return 0


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


# --- timeline


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Raises NotImplementedError: unlike Horovod, this library has no coordinator whose cycles it could record."""
    world.current()
    raise NotImplementedError(
        "there is no timeline: collectives.tensorflow.GradientExchange(record=True) records when each bucket of "
        "gradients was on the wire, and comm.explain(...) what runs"
    )


def stop_timeline() -> None:
    """Does nothing: no timeline can have been started."""
    world.current()
