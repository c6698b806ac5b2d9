"""The task of ranks that a command starts for measuring.

Invariant: survives JSON, in which it is passed to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """`budget`: seconds, for all of it or for each size, as the one who measures has it."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    transport: str
    budget: float

    @staticmethod
    def from_json(value: dict[str, Any]) -> Order:
        return Order(tuple(value["collectives"]), tuple(value["sizes"]), value["transport"], value["budget"])
