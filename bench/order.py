"""The order from a benchmark command to the ranks that it starts: what they have to measure.

Invariant: an order is passed to the ranks as JSON, and the ranks read an equal order from the JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """What ranks have to measure: the calls of `collectives`, at `sizes` in bytes.

    `budget`: the seconds for all measurements, or for each size, as the function that gets the order defines.
    """

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    transport: str
    budget: float

    @staticmethod
    def from_json(value: dict[str, Any]) -> Order:
        return Order(tuple(value["collectives"]), tuple(value["sizes"]), value["transport"], value["budget"])
