"""Reads the steps of a schedule into arrays.

Invariant: steps of one kind are read together, column by column, so that a step costs no call of a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from collectives.schedule.form import Chunk, Copy, Recv, Reduce, Schedule, Send
from collectives.simulation.relations import Array
from collectives.simulation.waits import Accesses

SEND: Final = 0
RECV: Final = 1
REDUCE: Final = 2
COPY: Final = 3

_KINDS: Final = {Send: SEND, Recv: RECV, Reduce: REDUCE, Copy: COPY}


class Steps:
    """The steps of a schedule, as arrays.

    - `forms`: for each step a row (kind, number of peers, number of blocks, number of operands)
    - `step`, `peer`: an item for each peer of each step, kind by kind; those of one step are in its order
    - `accesses`: the chunks that the steps read and write
    """

    def __init__(self, schedule: Schedule) -> None:
        steps = schedule.steps
        sends = [step for step in steps if type(step) is Send]
        recvs = [step for step in steps if type(step) is Recv]
        reduces = [step for step in steps if type(step) is Reduce]
        copies = [step for step in steps if type(step) is Copy]
        kind = np.fromiter(map(_KINDS.__getitem__, map(type, steps)), np.int64, len(steps))
        send, recv, reduce, copy = (np.flatnonzero(kind == number) for number in (SEND, RECV, REDUCE, COPY))

        targets, operands = [step.peers for step in sends], [step.operands for step in reduces]
        many, terms = _lengths(targets), _lengths(operands)
        every = list(chain.from_iterable(operands))
        local = np.fromiter([type(operand) is Chunk for operand in every], bool, len(every))
        owner = np.repeat(reduce, terms)
        received = np.bincount(owner[~local], minlength=len(steps))[reduce]
        self.step = np.concatenate([np.repeat(send, many), recv, owner[~local]])
        peers = chain(
            chain.from_iterable(targets),
            [step.peer for step in recvs],
            [operand for operand in every if not isinstance(operand, Chunk)],
        )
        self.peer = np.fromiter(peers, np.int64, self.step.size)

        out, into = _rows([step.chunk for step in sends]), _rows([step.chunk for step in recvs])
        sources, sums = _rows([o for o in every if isinstance(o, Chunk)]), _rows([step.dst for step in reduces])
        original, copied = _rows([step.src for step in copies]), _rows([step.dst for step in copies])
        moved = np.where((original == copied).all(axis=1), 0, copied[:, 2])
        self.forms = np.zeros((len(steps), 4), np.int64)
        self.forms[:, 0], self.forms[:, 3] = kind, kind != SEND
        self.forms[send, 1], self.forms[send, 2] = many, out[:, 2]
        self.forms[recv, 1], self.forms[recv, 2] = 1, into[:, 2]
        self.forms[reduce, 1], self.forms[reduce, 2], self.forms[reduce, 3] = received, sums[:, 2], terms
        self.forms[copy, 2] = moved

        step = np.concatenate([send, owner[local], copy, recv, reduce, copy])
        chunk = np.concatenate([out, sources, original, into, sums, copied])
        write = np.arange(step.size) >= len(out) + len(sources) + len(original)
        order = np.argsort(2 * step + write, kind="stable")
        self.accesses = Accesses(step[order], chunk[order], write[order])


def _lengths(lists: Sequence[Sequence[object]]) -> Array:
    return np.fromiter(map(len, lists), np.int64, len(lists))


def _rows(chunks: Sequence[Chunk]) -> Array:
    return np.fromiter(chain.from_iterable(chunks), np.int64, 3 * len(chunks)).reshape(-1, 3)
