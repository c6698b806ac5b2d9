"""Symbolic values and memory, on which `verification` runs schedules.

Invariant: a value is the number of an expression, and equal expressions have the same number. So values are compared as
integers.
"""

from __future__ import annotations

from copy import copy

from collectives.schedule.conditions import collective
from collectives.schedule.form import IN, OUT, SCRATCH, Chunk, Schedule


class Values:
    """Numbers the symbolic expressions that ranks compute, for example a reduction of several ranks' blocks.

    The number is called the value of the expression. Equal expressions have the same value; 0 stands for no expression.
    """

    def __init__(self, name: str, in_order: bool) -> None:
        contract = collective(name)
        self.in_order = in_order or contract.prefixes
        self._has_final = not contract.prefixes
        self._numbers: dict[object, int] = {}
        self._blocks: list[int] = [-1]  # the block of ranks' inputs from which a value is made
        self._ranks: list[int] = [0]  # the ranks whose inputs it contains, one bit for each rank
        self._ordered: list[bool] = [True]  # whether it combines consecutive ranks in order
        self._once = name != "barrier"

    def leaf(self, rank: int, block: int) -> int:
        return self._number(("leaf", rank, block), block, 1 << rank, True)

    def _number(self, key: object, block: int, ranks: int, ordered: bool) -> int:
        number = self._numbers.setdefault(key, len(self._blocks))
        if number == len(self._blocks):
            self._blocks.append(block)
            self._ranks.append(ranks)
            self._ordered.append(ordered)
        return number

    def reduced(self, operands: tuple[int, ...]) -> int | str:
        """Reduces `operands`, numbers of symbolic values, from left to right; returns the number of the result.

        If the reduction is wrong, returns a text that says why: for example, it counts a rank's data twice.
        """
        known = self._numbers.get(operands)
        if known is not None:
            return known
        block, ranks, ordered = self._blocks[operands[0]], 0, True
        for operand in operands:
            if self._blocks[operand] != block:
                return f"mixes contributions to block {block} with contributions to block {self._blocks[operand]}"
            again = ranks & self._ranks[operand]
            if again and self._once:
                return f"counts rank {again.bit_length() - 1} twice"
            follows = ranks == 0 or self._ranks[operand] & -self._ranks[operand] == 1 << ranks.bit_length()
            ordered = ordered and follows and self._ordered[operand]
            ranks |= self._ranks[operand]
        return self._number(operands, block, ranks, ordered)

    def is_final(self, value: int, size: int) -> bool:
        return self._has_final and self._ranks[value] == (1 << size) - 1

    def is_ordered(self, value: int) -> bool:
        return self._ordered[value]

    def missing(self, value: int, size: int) -> list[int]:
        return [r for r in range(size) if not self._ranks[value] >> r & 1]

    def is_total(self, value: int, block: int, ranks: int) -> bool:
        """Whether the number `value` stands for the reduction of input block `block` over ranks 0 to `ranks` - 1."""
        return self._blocks[value] == block and self._ranks[value] == (1 << ranks) - 1

    def text(self, value: int) -> str:
        if value == 0:
            return "nothing"
        ranks = [r for r in range(self._ranks[value].bit_length()) if self._ranks[value] >> r & 1]
        return f"block {self._blocks[value]} of " + (f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks}")


class Memory:
    """The simulated buffers of one rank: for each block a symbolic value, and whether this value has yet to be read.

    A new `Memory` contains the rank's inputs.
    """

    def __init__(self, schedule: Schedule, values: Values) -> None:
        contract = collective(schedule.collective)
        self.values: list[list[int]] = []
        self.unread: list[bytearray] = []
        for buffer, blocks in enumerate((*schedule.grid, *(len(slot) for slot in schedule.scratch))):
            given = buffer < SCRATCH and contract.initial(buffer, schedule.rank, schedule.root)
            leaves = [values.leaf(schedule.rank, b) if given else 0 for b in range(blocks)]
            self.values.append(leaves)
            self.unread.append(bytearray([given and contract.uses_input_of(schedule.rank, schedule.size)]) * blocks)

    def copy(self, in_place: bool) -> Memory:
        """Returns a copy of one rank's simulated buffers, and of the marks that say which blocks have yet to be read.

        With `in_place`, the output buffer OUT and the input buffer IN of the copy are the same memory.
        """
        copied = copy(self)
        copied.values = [values.copy() for values in self.values]
        copied.unread = [unread.copy() for unread in self.unread]
        if in_place:
            copied.values[OUT] = copied.values[IN]
            copied.unread[OUT] = copied.unread[IN]
        return copied

    def same(self, a: Chunk, b: Chunk) -> bool:
        return a[1:] == b[1:] and self.values[a.buffer] is self.values[b.buffer]
