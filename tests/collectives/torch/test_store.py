"""Torch's stores do what every store must do: the tests of all stores, on these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from collectives.rendezvous.store import MAX_VALUE, Store
from tests.rendezvous import test_stores as every
from tests.rendezvous.backends import Backend

dist = pytest.importorskip("torch.distributed", reason="PyTorch is not installed")

from collectives.torch.store import MOST, TorchStore, _value  # noqa: E402

# Those that need other sizes are below.
_OTHERS = ("test_too_big_a_value_is_refused_before_anything_is_sent", "test_big_values")
globals().update({name: f for name, f in vars(every).items() if name.startswith("test_") and name not in _OTHERS})


@pytest.fixture(params=["hash", "file", "tcp"])
def any_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    path = str(tmp_path / "store")
    server: Any = None
    if request.param == "hash":
        server = dist.HashStore()
    elif request.param == "tcp":
        server = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)

    def connect() -> Any:
        if request.param == "hash":
            return server
        if request.param == "file":
            return dist.FileStore(path, -1)  # -1: the file is not removed with the last one that was opened
        return dist.TCPStore("127.0.0.1", server.port, None, False, timedelta(seconds=30))

    held: set[str] = set()
    opened: list[TorchStore] = []

    def leftovers() -> int:
        looker = connect()
        found = [looker.compare_set(f"prefix/{key}", b"?", b"?") for key in held]
        return sum(_value(bytes(raw)) is not None for raw in found)

    def opener() -> Store:
        store = _Noting(dist.PrefixStore("prefix", connect()), held)
        opened.append(store)
        return store

    yield Backend(request.param, opener, leftovers)
    for store in opened:
        store.close()


@pytest.fixture
def store(any_backend: Backend) -> Iterator[Store]:
    opened = any_backend.open()
    yield opened
    opened.close()


class _Noting(TorchStore):
    """Notes which keys were touched, since not every store of torch's lists them."""

    def __init__(self, store: Any, keys: set[str]) -> None:
        super().__init__(store)
        self._keys = keys

    def _compare(self, name: str, expected: bytes, desired: bytes) -> bytes:
        self._keys.add(name)
        return super()._compare(name, expected, desired)


@pytest.mark.parametrize("size", [1 << 20, MOST])
def test_big_values(store: Store, size: int) -> None:
    every.test_big_values(store, size)


def test_a_value_that_would_break_the_connection_is_refused(store: Store, any_backend: Backend) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: store.set("a", bytes(MOST + 1)),
        lambda: store.compare_set("a", None, bytes(MAX_VALUE + 1)),
        lambda: store.compare_set("a", bytes(MOST + 1), b""),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="at most"):
            call()
    assert any_backend.leftovers() == 0
    store.set("a", b"still there")
    assert store.get("a") == b"still there"
