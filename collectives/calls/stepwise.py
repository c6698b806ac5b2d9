"""Runs a schedule (one rank's steps of a collective) in Python, for reductions by a Python function.

Invariant: steps run in the order of the schedule; only sends continue in the background. Data that is being sent is not
overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from collectives.arrays.array import Array
from collectives.calls.moves import Deadline
from collectives.calls.prepare import Preparer, Shape
from collectives.native import _engine
from collectives.schedule.compile import RECV, SEND
from collectives.schedule.form import IN, Chunk, Copy, Recv, Schedule, Send

Combine = Callable[[Array, Array, Array], None]  # (a, b, out)


class Messages:
    """Makes the C++ engine's operations for the messages of one collective whose `op` is a Python function.

    Each message carries `code`, a hash by which ranks notice that they call different collectives.
    """

    def __init__(self, prepare: Preparer, shape: Shape, code: int) -> None:
        self._prepare: Final = prepare
        self._shape: Final = shape
        self._code: Final = code

    def send(self, peers: tuple[int, ...], count: int, first: bool) -> _engine.Operation:
        return self._prepare.part(self._shape, self._code, SEND, peers, count, first)

    def recv(self, peer: int, count: int, first: bool) -> _engine.Operation:
        return self._prepare.part(self._shape, self._code, RECV, (peer,), count, first)


class Stepwise:
    """One run of a schedule."""

    def __init__(
        self, group: _engine.Group, schedule: Schedule, messages: Messages, combine: Combine, seconds: float
    ) -> None:
        self._group: Final = group
        self._schedule: Final = schedule
        self._messages: Final = messages
        self._combine: Final = combine
        self._deadline: Final = Deadline(seconds)
        self._begun = False
        self._leaving: list[tuple[_engine.Ticket, Array]] = []
        self._buffers: list[tuple[Array | None, list[int]]] = []

    def run(self, inp: Array, out: Array | None, limits: tuple[list[int], list[int]]) -> None:
        """Runs this rank's steps of a reduction by a Python function, on the one-dimensional arrays `inp` and `out`.

        `limits`: for each of the two arrays, the indices at which its blocks begin; the last item is the end of the
        last block.
        """
        self._buffers = [(inp, limits[0]), (out, limits[1])]
        for slot in self._schedule.scratch:
            ends = [0]
            for buffer, block in slot:
                like = limits[0 if buffer == IN else 1]
                ends.append(ends[-1] + like[block + 1] - like[block])
            self._buffers.append((np.empty(ends[-1], inp.dtype), ends))
        for step in self._schedule.steps:
            if isinstance(step, Send):
                self._send(step.peers, self._view(step.chunk))
            elif isinstance(step, Recv):
                self._recv(step.peer, self._free(step.chunk))
            elif isinstance(step, Copy):
                if not _same(dst := self._view(step.dst), src := self._view(step.src)):
                    self._free(step.dst)
                    dst[...] = src
            else:
                self._reduce(self._view(step.dst), [self._operand(o, step.dst) for o in step.operands])
        for ticket, _ in self._leaving:
            ticket.wait(None)

    def _view(self, chunk: Chunk) -> Array:
        array, ends = self._buffers[chunk.buffer]
        assert array is not None
        return array[ends[chunk.first] : ends[chunk.first + chunk.count]]

    def _free(self, chunk: Chunk) -> Array:
        """The memory of that chunk, once no send reads it any more."""
        view = self._view(chunk)
        self._wait_for(view)
        return view

    def _wait_for(self, view: Array) -> None:
        staying = []
        for ticket, sent in self._leaving:
            if np.may_share_memory(sent, view):
                ticket.wait(None)
            else:
                staying.append((ticket, sent))
        self._leaving = staying

    def _send(self, peers: tuple[int, ...], data: Array) -> None:
        operation = self._messages.send(peers, data.size, self._is_first())
        self._leaving.append((self._group.start(operation, data, None, self._deadline.left), data))

    def _recv(self, peer: int, place: Array) -> None:
        operation = self._messages.recv(peer, place.size, self._is_first())
        self._group.run(operation, None, place, self._deadline.left)

    def _is_first(self) -> bool:
        begun, self._begun = self._begun, True
        return not begun

    def _operand(self, operand: int | Chunk, dst: Chunk) -> Array:
        if isinstance(operand, Chunk):
            return self._view(operand)
        place = np.empty_like(self._view(dst))
        self._recv(operand, place)
        return place

    def _reduce(self, dst: Array, operands: list[Array]) -> None:
        # An operand may be at the destination: nothing is written there before the last operand was read.
        total = operands[0]
        between = np.empty_like(dst) if len(operands) > 2 else dst
        for operand in operands[1:-1]:
            self._combine(total, operand, between)
            total = between
        self._wait_for(dst)
        self._combine(total, operands[-1], dst)


def _same(a: Array, b: Array) -> bool:
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])
