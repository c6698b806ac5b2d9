"""Run by test_common.py with three processes: what needs no framework."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import collectives
from collectives.core.default import default
from collectives.horovod import common as hvd
from collectives.horovod import objects, process_sets
from collectives.horovod.process_sets import ProcessSet
from tests.collectives.horovod.worker import raised, run


def before_init() -> Any:
    functions = [hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size]
    more = [hvd.is_homogeneous, hvd.stop_timeline, lambda: hvd.add_process_set([0]), hvd.global_process_set.size]
    return hvd.is_initialized(), [raised(function) for function in [*functions, *more]]


def numbers() -> Any:
    hvd.init()
    hvd.init()  # does nothing
    return [
        hvd.is_initialized(),
        [hvd.size(), hvd.local_size(), hvd.cross_size(), hvd.cross_rank(), hvd.is_homogeneous()],
        [hvd.rank(), hvd.local_rank()],
        [hvd.global_process_set.size(), hvd.global_process_set.rank(), hvd.global_process_set.included()],
    ]


def sets() -> Any:
    made = hvd.add_process_set(ProcessSet([2, 0]))
    other = hvd.add_process_set([1])
    found: dict[str, Any] = {
        "numbers": [made.process_set_id, other.process_set_id, made.size(), made.included(), other.included()],
        "alone": made.training().size,
        "twice": raised(hvd.add_process_set, [0, 2]),
        "all": raised(hvd.add_process_set, [0, 1, 2]),
        "unknown": raised(hvd.add_process_set, [0, 3]),
        "different": raised(hvd.add_process_set, [hvd.rank()]),
        "unregistered": raised(ProcessSet([0]).group),
        "root": [made.root(2), raised(made.root, 1)],
        "by number": process_sets.of(made.process_set_id or 0) is made,
    }
    if made.included():
        found["sum"] = made.group().allreduce(np.array(hvd.rank() + 1)).tolist()
        found["objects"] = objects.broadcast_object({"rank": hvd.rank()}, 2, process_set=made)
        found["rank"] = made.rank()
    else:
        found["outside"] = [raised(made.group), raised(made.rank)]
    found["removed"] = [hvd.remove_process_set(made), hvd.remove_process_set(made), made.process_set_id, made.size()]
    found["global stays"] = hvd.remove_process_set(hvd.global_process_set)
    hvd.add_process_set([0, 2])  # once more
    return found


def objects_that_travel() -> Any:
    mine = {"rank": hvd.rank(), "none": None, "list": [1, 2.5, "x"]}
    sent = objects.broadcast_object(b"bytes" if hvd.rank() == 1 else None, root_rank=1)
    refused = raised(objects.broadcast_object, object() if hvd.rank() == 0 else None)
    keyed = {1: ("a", 2), (2, 3): {4}}
    assert objects.broadcast_object(keyed if hvd.rank() == 0 else None) == keyed
    return [objects.broadcast_object(mine, 2), objects.allgather_object(mine), sent == b"bytes", refused]


def some_of_the_ranks() -> Any:
    hvd.shutdown()
    hvd.shutdown()  # does nothing
    gone = [hvd.is_initialized(), raised(hvd.rank)]
    results = raised(hvd.init, comm=[2, 1])
    if hvd.is_initialized():
        found = [hvd.rank(), hvd.size(), objects.allgather_object("here")]
        hvd.shutdown()
        return gone, results, found
    return gone, results, None


def communicators_of_the_users() -> Any:
    found = []
    with collectives.init(name="mine") as comm:
        for given in (None, comm):  # found by itself, and given
            hvd.init(comm=given, process_sets=[ProcessSet([0, 1])])
            found.append([hvd.size(), process_sets.of(process_sets._registered[0].process_set_id or 0).size()])
            hvd.shutdown()
            found.append([hvd.is_initialized(), default(comm).closed])
        with collectives.init(name="another"):
            several = raised(hvd.init)
    return found, several


def refused() -> Any:
    own_rank = int(os.environ["COLLECTIVES_RANK"])

    class Comm:
        """Like one of mpi4py's."""

    lists = [raised(hvd.init, comm=given) for given in ([0, 0], ["0"], [0, 1, 2, 3])]
    wrong = [
        raised(hvd.init, process_sets=[ProcessSet([0, 1]), ProcessSet(last)]) for last in ([0, 1], [0, 7], [own_rank])
    ]
    wrong.append(raised(hvd.init, process_sets=[[0, 1], [0, "1"]]))
    nothing = hvd.is_initialized(), len(process_sets._registered)
    hvd.init(process_sets=[ProcessSet([0, 1]), ProcessSet([0, 2])])
    wrong.append(raised(hvd.add_process_set, [0, 1]))
    corrected = nothing, [known.ranks for known in process_sets._registered]
    hvd.shutdown()
    lists.append(raised(hvd.init, comm=[0, 1] if own_rank == 0 else [own_rank]))
    hvd.shutdown()
    return raised(hvd.init, comm=Comm()), raised(hvd.init, process_sets="static"), lists, wrong, corrected


run(
    [
        before_init,
        numbers,
        sets,
        objects_that_travel,
        some_of_the_ranks,
        communicators_of_the_users,
        refused,
    ]
)
