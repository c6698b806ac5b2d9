"""Calls of a store that read the key "a", by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.rendezvous.store import Store

CALLS: dict[str, Callable[[Store], Any]] = {
    "get": lambda store: store.get("a", 5),
    "wait": lambda store: store.wait(["a"], 5),
    "wait for many": lambda store: store.wait(["a", *"bcdefg"], 5),
    "add": lambda store: store.add("a", 1, 5),
    "compare_set": lambda store: store.compare_set("a", b"old", b"new", 5),
}
