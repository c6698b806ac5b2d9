"""Divides among all ranks the samples that one rank has read.

Invariant: by default, every rank gets the same number of samples, and so the same number of batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.arrays.array import Array
from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.gradients.objects import allgather_object


def scatter_data(
    *arrays: Any, root_rank: int = 0, comm: Communicator | None = None, drop: bool = True
) -> tuple[Array, ...]:
    """Returns this rank's rows of the arrays of rank `root_rank`: the same contiguous range of rows from each array.

    The root passes arrays of equal lengths (NumPy, or objects that np.asarray accepts). Other ranks pass the same
    number of arguments, whose values are ignored, for example None. If the rows cannot be divided equally, `drop`
    leaves out the last rows, so that epochs have the same number of steps on every rank. Without `drop`, the first
    ranks get one row more. ValueError on all ranks if the root's arrays are invalid.
    """
    comm = default(comm)
    mine = [np.asarray(x) for x in arrays] if comm.rank == root_rank else []
    wrong = _wrong(mine, comm.size, drop) if comm.rank == root_rank else ""
    reported = allgather_object(comm, [len(arrays), wrong])
    if reported[root_rank][1]:
        raise ValueError(f"rank {root_rank}: {reported[root_rank][1]}")
    if len({count for count, _ in reported}) > 1:
        raise ValueError(
            f"every rank has to pass as many arrays as rank {root_rank}: {[count for count, _ in reported]}"
        )
    rows = len(mine[0]) if mine else 0
    kept = rows - rows % comm.size if drop else rows
    counts = [len(part) for part in np.array_split(np.arange(kept), comm.size)] if mine else None
    return tuple(
        comm.scatterv(np.ascontiguousarray(mine[i][:kept]) if mine else None, counts, root_rank)
        for i in range(len(arrays))
    )


def _wrong(arrays: list[Array], size: int, drop: bool) -> str:
    if not arrays:
        return "there is nothing to scatter"
    if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
        return f"arrays differ in length: {[array.shape for array in arrays]}"
    if drop and len(arrays[0]) < size:
        return f"{len(arrays[0])} samples do not give each of {size} ranks one"
    return ""
