"""Wrong arguments, closing, and resources given back, on every store."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous.store import MAX_KEY, Store
from tests.rendezvous.backends import Backend
from tests.rendezvous.threads import background, together
from tests.waiting import AT_ONCE, eventually

SLACK = AT_ONCE

CALLS: dict[str, Callable[[Store, Any], Any]] = {
    "set": lambda store, timeout: store.set("a", b"", timeout),
    "get": lambda store, timeout: store.get("a", timeout),
    "wait": lambda store, timeout: store.wait(["a"], timeout),
    "add": lambda store, timeout: store.add("a", 1, timeout),
    "compare_set": lambda store, timeout: store.compare_set("a", None, b"", timeout),
    "delete": lambda store, timeout: store.delete(["a"], timeout),
}


def test_bad_timeouts(store: Store, any_backend: Backend) -> None:
    wrong: list[tuple[Any, type[Exception]]] = [(value, ValueError) for value in (math.nan, -1, -0.001, math.inf)]
    wrong += [(value, TypeError) for value in ("1", None, True, 1j)]
    for call in CALLS.values():
        for timeout, error in wrong:
            with pytest.raises(error, match="timeout"):
                call(store, timeout)
    assert any_backend.leftovers() == 0


def test_bad_keys(store: Store, any_backend: Backend) -> None:
    bad: list[Any] = ["", "x" * (MAX_KEY + 1), "ü" * (MAX_KEY // 2 + 1), "a\0b", "a\nb", "\ud800", 1, None, b"a"]
    for key in bad:
        calls: list[Callable[[], Any]] = [
            lambda key=key: store.set(key, b""),  # type: ignore[misc]
            lambda key=key: store.get(key),  # type: ignore[misc]
            lambda key=key: store.wait(["a", key], 1),  # type: ignore[misc]
            lambda key=key: store.add(key, 1),  # type: ignore[misc]
            lambda key=key: store.compare_set(key, None, b""),  # type: ignore[misc]
            lambda key=key: store.delete(["a", key]),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(ValueError if isinstance(key, str) else TypeError, match="key"):
                call()
    assert any_backend.leftovers() == 0


def test_bad_values_and_amounts(store: Store, any_backend: Backend) -> None:
    bad: Any
    for bad in ("text", 1, [1]):
        with pytest.raises(TypeError):
            store.set("a", bad)
        with pytest.raises(TypeError):
            store.compare_set("a", bad, b"")
        with pytest.raises(TypeError):
            store.compare_set("a", None, bad)
    with pytest.raises(TypeError):
        store.set("a", None)  # type: ignore[arg-type]
    for bad in (1.5, "1", None, True):
        with pytest.raises(TypeError):
            store.add("a", bad)
    with pytest.raises(ValueError, match="64 bits"):
        store.add("a", 2**63)
    for bad in (None, 5):
        with pytest.raises(TypeError):
            store.wait(bad, 1)
    assert any_backend.leftovers() == 0


def test_a_closed_store_says_so(any_backend: Backend) -> None:
    store = any_backend.open()
    store.close()
    store.close()
    for call in CALLS.values():
        with pytest.raises(StoreError, match="closed"):
            call(store, 5)


def test_closing_wakes_who_waits(any_backend: Backend, store: Store) -> None:
    other = any_backend.open()
    thread, outcome = background(lambda: other.wait(["never"], 60))
    with pytest.raises(OpTimeout):
        store.wait(["never"], 0.3)
    other.close()
    thread.join(SLACK)
    assert not thread.is_alive()
    assert isinstance(outcome.error, StoreError)
    store.set("a", b"1")  # nobody else is disturbed


def test_no_descriptor_or_thread_stays(any_backend: Backend, no_threads_left: None) -> None:
    def use() -> None:
        opened = any_backend.open()
        opened.set("a", b"1")
        together([lambda: opened.wait(["a"], 5) for _ in range(4)])
        opened.delete(["a"])
        opened.close()

    use()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        use()
    # the other end of a tcp connection is in this process too, and notices a moment later
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
