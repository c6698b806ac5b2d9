"""`init_method="collectives://"`: torch's processes find each other through the settings of their launcher.

Invariant: no port is opened besides that of the store itself. Keys in the store differ from those of other jobs and
earlier calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from collectives.native.errors import OpTimeout
from collectives.rendezvous.bootstrap import bootstrap
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.prefix import PrefixStore
from collectives.rendezvous.store import Store, open_store

_FOREVER: Final = 1e6  # seconds
# Torch keeps only the C++ part of a store alive, which does not work without the Python part.
_kept: Final[list[OurStore]] = []


def meet(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Torch's rendezvous handler for URLs that begin with `collectives://`, such as an `init_method`.

    Yields a store for torch, this process's rank and the number of ranks. Raises ValueError if the launcher's settings
    are invalid or incomplete, and the errors of opening the store that these settings name.
    """
    launch = bootstrap()
    if launch.launcher == "torchrun" and os.environ.get("MASTER_ADDR"):
        yield from rendezvous("env://", timeout=timeout or timedelta(minutes=30))
        return
    if launch.store is None:
        store: Store = MemoryStore(f"torch-{len(_kept)}")
    else:
        store = open_store(launch.store, host=launch.rank == 0, secret=launch.secret)
    name = f"torch/{launch.name or 'default'}/{launch.run_id or ''}/{len(_kept)}/"
    ours = OurStore(PrefixStore(store, name), timeout.total_seconds() if timeout else _FOREVER)
    _kept.append(ours)
    yield ours, launch.rank, launch.size
    raise RuntimeError("ranks that met by collectives:// cannot meet again: make a new process group")


class OurStore(dist.Store):
    """A torch store that keeps its keys in one of this library's stores, such as Redis or a directory."""

    def __init__(self, store: Store, timeout: float) -> None:
        super().__init__()
        self._store: Final = store
        self._seconds = timeout

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, _bytes(value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._store.wait(keys, self._seconds)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return all(self._store.get(key) is not None for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        try:
            self._store.wait(keys, seconds)
        except OpTimeout as error:
            raise dist.DistStoreError(str(error)) from error

    def compare_set(self, key: str, expected_value: Any, desired_value: Any) -> bytes:
        expected = _bytes(expected_value)
        found = self._store.compare_set(key, expected or None, _bytes(desired_value))
        return expected if found is None else found  # torch returns the expected value in this case

    def append(self, key: str, value: Any) -> None:
        more = _bytes(value)
        while True:
            old = self._store.get(key)
            new = (old or b"") + more
            if self._store.compare_set(key, old, new) == new:
                return
            time.sleep(0.001)

    def delete_key(self, key: str) -> bool:
        return self._store.delete([key]) == 1

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._seconds)

    # The names that C++ calls.
    compareSet = compare_set
    deleteKey = delete_key
    multiGet = multi_get
    multiSet = multi_set
    hasExtendedApi = has_extended_api


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
