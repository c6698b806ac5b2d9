"""The order from a benchmark command to the ranks that it starts: what they have to measure.

Invariant: an order is passed to the ranks as JSON, and the ranks read an equal order from the JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """The measurements that the ranks of a benchmark have to make: each of `collectives` at each of `sizes`, in bytes.

    `transport` is the transport to use. `budget` is a time in seconds. The function that takes this object says whether
    the time is for all measurements or for each size.
    """

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    transport: str
    budget: float

    @staticmethod
    def from_json(value: dict[str, Any]) -> Order:
        return Order(tuple(value["collectives"]), tuple(value["sizes"]), value["transport"], value["budget"])
