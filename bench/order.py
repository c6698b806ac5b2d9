"""The task of ranks that a command starts for measuring.

Invariant: it is passed to the ranks as JSON, and is the same value there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """`budget`: seconds, for everything or for each size: see the function that measures."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    transport: str
    budget: float

    @staticmethod
    def from_json(value: dict[str, Any]) -> Order:
        return Order(tuple(value["collectives"]), tuple(value["sizes"]), value["transport"], value["budget"])
