"""Wrong files in the directory of a file store: an error that names store and key."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous.file import FileStore
from collectives.rendezvous.store import Store
from tests.rendezvous.store_calls import CALLS
from tests.rendezvous.threads import background
from tests.waiting import AT_ONCE


def _home(store: FileStore, key: str = "a") -> Path:
    return Path(store._home(key))


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # what /dev/zero is
    except PermissionError:
        pytest.skip("making a device needs root")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _folder(path: Path) -> None:
    path.mkdir()


PLANTED: list[Callable[[Path], None]] = [_fifo, _socket, _device, _loop, _link_to_a_device, _sparse, _folder]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(tmp_path / "store")
    for key in "bcdefg":
        store.set(key, b"")
    yield store
    store.close()


def _refused(store: FileStore, call: Callable[[Store], Any], name: str) -> None:
    thread, outcome = background(lambda: call(store))
    thread.join(20)
    assert not thread.is_alive(), "hangs"
    assert isinstance(outcome.error, StoreError), outcome.error
    assert str(store._root) in str(outcome.error) and name in str(outcome.error)
    assert outcome.seconds < 5 + AT_ONCE


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_no_file_in_the_place_of_a_value(
    plant: Callable[[Path], None], call: Callable[[Store], Any], folder: FileStore
) -> None:
    home = _home(folder)
    home.mkdir()
    plant(home / ("i." + "0" * 24))
    _refused(folder, call, "i.0000")
    if plant is not _folder:
        folder.delete(["a"])  # and there is a way out
        assert folder.get("a") is None


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_no_file_in_the_place_of_a_replaced_value(
    plant: Callable[[Path], None], call: Callable[[Store], Any], folder: FileStore
) -> None:
    folder.set("a", b"1")
    folder.set("a", b"2")
    (token,) = os.listdir(_home(folder))
    value = Path(folder._root) / f"v.{token[2:]}"
    value.unlink()
    plant(value)
    _refused(folder, call, value.name)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("plant", [plant for plant in PLANTED if plant is not _folder])
def test_what_is_no_directory_in_the_place_of_a_key(
    plant: Callable[[Path], None], call: Callable[[Store], Any], folder: FileStore
) -> None:
    plant(_home(folder))
    _refused(folder, call, "k.a")


@pytest.mark.parametrize("name", ["notes.txt", "i.", "x.nothing", b"\xff\xfe", "i." + "g" * 24])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_file_of_another_name_beside_the_token(
    name: str | bytes, call: Callable[[Store], Any], folder: FileStore
) -> None:
    _home(folder).mkdir()
    with open(os.path.join(os.fsencode(_home(folder)), os.fsencode(name)), "wb"):
        pass
    _refused(folder, call, "k.a")


def test_a_value_that_was_taken_away(folder: FileStore) -> None:
    folder.set("a", b"1")
    folder.set("a", b"2")
    (token,) = os.listdir(_home(folder))
    (Path(folder._root) / f"v.{token[2:]}").unlink()
    with pytest.raises(StoreError, match=f"v.{token[2:]}.*was it removed"):
        folder.get("a", 0.1)


@pytest.mark.parametrize("plant", PLANTED[:-1])
def test_what_is_no_directory_in_the_place_of_the_store(plant: Callable[[Path], None], tmp_path: Path) -> None:
    plant(tmp_path / "store")
    with pytest.raises(StoreError, match="store"):
        FileStore(tmp_path / "store")


def test_a_file_that_nfs_has_left_is_no_token(folder: FileStore) -> None:
    folder.set("a", b"1")
    (_home(folder) / ".nfs000000000000001").touch()
    assert folder.get("a") == b"1"
    assert folder.add("a", 1) == 2


def test_a_directory_with_much_else_in_it_is_not_read_to_its_end(folder: FileStore) -> None:
    for number in range(3000):
        (Path(folder._root) / f"other.{number}").touch()
    for key in "abcdef":
        folder.set(key, key.encode())
    assert folder.wait([*"abcdef"], 5) == [key.encode() for key in "abcdef"]
    with pytest.raises(OpTimeout, match="'z'"):
        folder.wait([*"abcdefz"], 0)
