"""Sends objects between ranks. Horovod pickles them; here they are encoded by `collectives.gradients.encoding`.

Invariant: nothing is ever unpickled, so no rank runs code that another rank sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from collectives.gradients import objects
from collectives.horovod.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object `obj` of rank `root_rank` on every rank; on the other ranks it is a copy.

    None, bool, int, float, complex, str, bytes, arrays and tensors are supported, and lists, tuples, dicts and sets of
    them. Objects keep their types. TypeError on the root for any other object, and Aborted on the other ranks.
    """
    group, root = process_set.group(), process_set.root(root_rank)
    with _explained("broadcast_object"):
        found = objects.broadcast_object(group, obj, root)
    return obj if group.rank == root else found


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns a list of every rank's object `obj`, in rank order.

    `broadcast_object` describes which objects are supported, and the errors for others.
    """
    with _explained("allgather_object"):
        return objects.allgather_object(process_set.group(), obj)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except TypeError as error:
        raise TypeError(
            f"{what}: {error}. Horovod pickles any object, but nothing that another rank sent is unpickled here"
        ) from None
