"""Simulates all ranks of a group round by round, with arrays that hold the steps of all ranks.

Invariant: a round consists of all remaining steps that depend only on steps of earlier rounds. So every step is
simulated exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collectives.simulation.families import Family
from collectives.simulation.network import Network
from collectives.simulation.relations import Array, Ranks
from collectives.simulation.sequences import columns, spread, starts, turns
from collectives.simulation.steps import SEND


class Played(NamedTuple):
    """The result of a simulated collective: the seconds until all ranks are done, and the number of message rounds."""

    seconds: float
    rounds: int


class MismatchError(ValueError):
    """Raised if simulated ranks cannot complete: a send has no receive, a receive has no send, or steps deadlock."""


class Everyone:
    """Simulates all ranks of a group; the steps of all ranks are in arrays, one item for each step.

    `found`: sets of ranks with the same steps. In these sets, ranks are counted from the root: the root is 0. `size`:
    the number of ranks. Sizes of messages are in blocks, the parts of a buffer.
    """

    def __init__(self, found: Sequence[Family], ranks: Ranks, root: int = 0) -> None:
        self.size = size = ranks.size
        lengths = np.zeros(size, np.int64)
        for family in found:
            lengths[family.members] = len(family.outline.forms)
        first = np.cumsum(lengths) - lengths  # consecutive numbers for the steps of each rank
        count = int(lengths.sum())
        self.rank = (np.repeat(np.arange(size), lengths) + root) % size
        self._step = np.arange(count) - np.repeat(first, lengths)
        self.kind = np.zeros(count, np.int8)
        self.blocks, self.operands = np.zeros((2, count), np.int64)
        edges: list[tuple[Array, ...]] = []
        ends: list[tuple[Array, ...]] = []
        for family in found:
            members, forms, waits = np.array(family.members), family.outline.forms, family.outline.waits
            mine = np.arange(len(forms))[:, None] + first[members]
            self.kind[mine], self.blocks[mine], self.operands[mine] = (forms[:, part, None] for part in (0, 2, 3))
            edges.append((mine[waits.other], mine[waits.task], np.repeat(waits.progress, members.size)))
            task, turn = turns(forms[:, 1])
            others = ranks.every_peer(family.relations, family.constants, members)
            sends = np.repeat(forms[task, 0] == SEND, members.size)
            ends.append((mine[task], np.tile(members, task.size), others, np.repeat(turn, members.size), sends))
        self._match(columns([[part.ravel() for part in row] for row in ends], 5))
        source, target, shares = columns([[part.ravel() for part in row] for row in edges], 3)
        order = np.argsort(source, kind="stable")
        self._after, self._progress = target[order], shares[order]
        self._first_after = starts(source[order], count)
        self._missing = np.bincount(target, minlength=count) + np.bincount(self._taker, minlength=count)

    @property
    def sent(self) -> float:
        """The number of blocks sent by the rank that sends most."""
        if not self._sender.size:
            return 0.0
        return float(np.bincount(self.rank[self._sender], self.blocks[self._sender]).max())

    def _match(self, ends: Sequence[Array]) -> None:
        """Match the send and the receiving step of each message; messages from one rank to another keep their order."""
        task, rank, other, turn, sends = ends
        sends = sends.astype(bool)
        if ((other < 0) | (other >= self.size)).any():
            raise MismatchError("a peer is not one of the ranks")
        giving = rank[sends] * self.size + other[sends]
        taking = other[~sends] * self.size + rank[~sends]
        out, into = np.argsort(giving, kind="stable"), np.argsort(taking, kind="stable")
        if not np.array_equal(giving[out], taking[into]):
            raise MismatchError("messages have no taker, or steps no message")
        sender, turn, taker = task[sends][out], turn[sends][out], task[~sends][into]
        # Messages of one send are next to each other, in the order in which the send names its peers.
        order = np.argsort(sender * (int(turn.max(initial=0)) + 1) + turn)
        self._sender, self._turn, self._taker = sender[order], turn[order], taker[order]
        self._order = self._step[self._sender] * (int(self._turn.max(initial=0)) + 1) + self._turn
        self._first_message = starts(self._sender, self.rank.size)

    def play(self, network: Network, unit: float) -> Played:
        """Simulates the steps of all ranks on `network`; returns the seconds and the number of rounds of messages.

        `unit`: the size of a block in bytes. Raises MismatchError if steps wait for each other in a cycle.
        """
        count = self.rank.size
        nbytes, missing = self.blocks * unit, self._missing.copy()
        inside = network.is_inside(self.rank[self._sender], self.rank[self._taker])
        near = np.bincount(self._taker[inside], minlength=count)
        far = np.bincount(self._taker[~inside], minlength=count)
        ready, whole = np.zeros(count), np.zeros(count)  # times of first slices and last bytes
        first, last = np.zeros(count), np.zeros(count)
        following = np.zeros(count, bool)
        rounds = done = 0
        frontier = np.flatnonzero(missing == 0)
        while frontier.size:
            done += frontier.size
            sending = self.kind[frontier] == SEND
            now = frontier[~sending]
            if now.size:
                parts = (self.kind, nbytes, self.operands, near, far)
                takes = network.takes(self.rank[now], *(part[now] for part in parts))
                first[now], last[now] = network.perform(takes, ready[now], whole[now], self._step[now])
            now = frontier[sending]
            touched = []
            if now.size:
                rounds += 1
                task, messages = spread(self._first_message, now)
                taker = self._taker[messages]
                targets, turn, order = self.rank[taker], self._turn[messages], self._order[messages]
                sends = network.sends(self.rank[now], nbytes[now], task, targets, turn, order)
                begun, ended, first[now], last[now] = network.depart(sends, ready[now], whole[now], self._step[now])
                np.maximum.at(ready, taker, begun)
                np.maximum.at(whole, taker, ended)
                touched.append(taker)
            task, edges = spread(self._first_after, frontier)
            after, progress, task = self._after[edges], self._progress[edges], frontier[task]
            at = first[task] + progress * (last[task] - first[task])
            np.maximum.at(ready, after, np.where(progress < 0, 0.0, at))
            np.maximum.at(whole, after, last[task])
            changed = np.concatenate([*touched, after])
            np.subtract.at(missing, changed, 1)
            following[changed[missing[changed] == 0]] = True
            frontier = np.flatnonzero(following)
            following[frontier] = False
        if done < count:
            raise MismatchError("steps wait for each other")
        return Played(float(last.max(initial=0.0)), rounds)
