"""What all exchanges of gradients on a communicator share: a duplicate communicator, and the comparison of plans.

Invariant: ranks compare their plans of an exchange before any gradient is sent; every rank raises an error if plans
differ. A rank without data left joins: it takes part in the exchanges of the other ranks until all ranks have joined.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from collectives.arrays.array import Array, dtype_of
from collectives.core.communicator import Communicator
from collectives.gradients import sparse
from collectives.gradients.objects import gathered
from collectives.gradients.plan import Bucket, Entry, Plan, differences, listed, plan, sizes, unpack
from collectives.gradients.wire import Rules, settled
from collectives.native.errors import Aborted, CollectiveError, DesyncError, OpTimeout, PeerLost

_ACTIVE: Final = 0
_JOINED: Final = 1


class Channel:
    """A duplicate of a communicator, on which ranks exchange the gradients of training; made by the function `channel`.

    All ranks have to call its methods in the same order, from one thread at a time.
    """

    def __init__(self, parent: Communicator) -> None:
        self._parent: Final = weakref.ref(parent)
        self._rank: Final = parent.rank
        self._size: Final = parent.size
        self._lock: Final = threading.Lock()
        self._own: Communicator | None = None
        self.steps: Final[Counter[str]] = Counter()  # exchanges so far, by name

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def comm(self) -> Communicator:
        """The duplicate of the user's communicator, so that gradients are not confused with the user's own calls.

        It is made at the first use, in which all ranks have to take part. Raises Aborted if the user's communicator is
        closed.
        """
        parent = self._parent()
        if parent is None or parent.closed:
            raise Aborted("the communicator of these gradients is closed: make the hooks anew with a new one")
        with self._lock:
            if self._own is None:
                self._own = parent.attached()
            return self._own

    def agree(self, plan: Plan, step: int, timeout: float | None) -> None:
        """Waits until every rank has called `agree` with an equal `plan`, or has called `join`.

        A plan says which gradients the ranks send, and how. `step`: the number of the training step. Every rank raises
        DesyncError if plans differ.
        """
        if self._size == 1:
            return
        mine = np.array([_ACTIVE, *plan.digest, step])
        everyones = self.comm.allgather(mine, timeout=timeout)
        if not (everyones[:, :3] == mine[:3]).all():
            self._settle(everyones, plan.pack(), timeout)

    def join(self, timeout: float | None = None) -> int:
        """For a rank without data left: takes part in other ranks' gradient exchanges until all ranks call `join`.

        This rank contributes zeros, and no rows to sparse gradients. Returns the rank that called `join` last. If
        several ranks called `join` at the same time, returns the highest of these ranks.
        """
        comm = self.comm
        rounds = 0
        while True:
            everyones = comm.allgather(np.array([_JOINED, rounds, 0, 0]), timeout=timeout)
            if (everyones[:, 0] == _JOINED).all():
                waited = everyones[:, 1].tolist()
                return max(rank for rank, count in enumerate(waited) if count == min(waited))
            plan = self._settle(everyones, b"", timeout)
            for bucket in plan.buckets:
                _contribute_nothing(comm, plan, bucket, timeout)
            rounds += 1

    def _settle(self, everyones: npt.NDArray[np.int64], plan: bytes, timeout: float | None) -> Plan:
        """The plan of the active ranks, which have not joined. DesyncError if their plans differ.

        Every rank calls this. `everyones`, the same on all ranks: each rank's state (active or joined) and its plan's
        digest. `plan`: this rank's plan as bytes, empty if the rank has joined.
        """
        lengths = self.comm.allgather(np.array([len(plan)]), timeout=timeout)[:, 0].tolist()
        texts = gathered(self.comm, plan, lengths, timeout)
        plans = {rank: unpack(text, self._size) for rank, text in enumerate(texts) if text}
        if len({found.digest for found in plans.values()}) > 1:
            hint = (
                "; missing='zero' makes zeros of gradients that are None"
                if any(entry.kind == "none" for found in plans.values() for entry in found.entries)
                else ""
            )
            raise DesyncError(
                f"ranks disagree: {differences(plans)}. Every rank has to give the same variables in the same "
                f"order{hint}"
            )
        agreed = next(iter(plans.values()))
        joined = np.flatnonzero(everyones[:, 0] == _JOINED).tolist()
        if not agreed.rules.additive:
            raise DesyncError(
                f"{listed(joined)} joined, having no data left, and can take part by zeros: "
                f"that needs op='average' or 'sum', not {agreed.rules.op!r}"
            )
        return agreed


_channels: Final[weakref.WeakKeyDictionary[Communicator, Channel]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


def channel(comm: Communicator) -> Channel:
    """Returns the duplicate of `comm` for exchanges of gradients, the same object at every call.

    Nothing is sent before the object is used.
    """
    with _lock:
        return _channels.setdefault(comm, Channel(comm))


def planned(comm: Communicator, rules: Rules, entries: tuple[Entry, ...]) -> Plan:
    """Returns the plan for the exchange of the gradients that `entries` describe, as the function `plan` does.

    With compression="auto", the table of `comm` chooses the format. Raises TypeError or ValueError if an option in
    `rules` does not fit a gradient.
    """
    return plan(settled(rules, sizes(entries), comm._wire), entries, comm.size)


def reduce(
    comm: Communicator, plan: Plan, bucket: Bucket, arrays: Sequence[Array], timeout: float | None
) -> list[Array]:
    """Reduces the dense gradients of `bucket` over all ranks, and returns the results as new arrays.

    `arrays`: this rank's gradients, in the dtypes in which they are sent. `plan` says by which op and in which
    wire format each gradient is reduced. `timeout`: in seconds.
    """
    ways = [(plan.wire(place).op, plan.wire(place).format) for place in bucket.dense]
    found: dict[int, Array] = {}
    for way in sorted(set(ways), key=str):
        which = [i for i, each in enumerate(ways) if each == way]
        op, format_ = way
        results = comm.allreduce_many([arrays[i] for i in which], op, wire=format_, timeout=timeout)
        found.update(zip(which, results, strict=True))
    return [found[i] for i in range(len(ways))]


def joined_rows(comm: Communicator, rows: list[sparse.Rows], timeout: float | None) -> tuple[list[sparse.Rows], int]:
    """Gathers all ranks' rows of several sparse gradients; an item of `rows` has this rank's rows of one gradient.

    Returns a list like `rows`, whose items have the rows of all ranks in new arrays. Also returns the number of bytes
    that this rank sent.
    """
    message = sparse.pack(rows)
    return sparse.unpack(comm.allgatherv(message, timeout=timeout), rows, comm.size), message.nbytes


def located(error: BaseException, where: str) -> BaseException:
    """Returns an error of the same type as `error`, whose message begins with `where`.

    Returns `error` itself if it is not from this library.
    """
    reported = f"{where}: {error}"
    if isinstance(error, PeerLost):
        return PeerLost(reported, error.ranks)
    if isinstance(error, OpTimeout):
        return OpTimeout(reported, error.late)
    return type(error)(reported) if isinstance(error, CollectiveError) else error


def _contribute_nothing(comm: Communicator, plan: Plan, bucket: Bucket, timeout: float | None) -> None:
    """Send zeros and no rows for a bucket, as a rank that has joined does; the result is discarded."""
    if bucket.dense:
        zeros = [np.zeros(plan.entries[i].shape, plan.wire(i).dtype) for i in bucket.dense]
        reduce(comm, plan, bucket, zeros, timeout)
    if bucket.sparse:
        none = [
            sparse.Rows(np.empty(0, dtype_of(plan.entries[i].indices)), np.empty(0, plan.wire(i).dtype))
            for i in bucket.sparse
        ]
        comm.allgatherv(sparse.pack(none), timeout=timeout)
