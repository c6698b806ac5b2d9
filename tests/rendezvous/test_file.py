"""What is particular to the file store: crashes, permissions, polling, several processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from collectives.native.errors import StoreError
from collectives.rendezvous.file import FileStore
from tests.rendezvous.processes import python
from tests.waiting import eventually


def test_processes_add_and_none_is_lost(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from collectives.rendezvous.file import FileStore\n"
        "store = FileStore(sys.argv[1])\n"
        "for _ in range(25): store.add('n', 1)\n"
    )
    workers = [python(code, str(tmp_path)) for _ in range(4)]
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
    store = FileStore(tmp_path)
    assert store.get("n") == b"100"
    store.delete(["n"])
    assert os.listdir(tmp_path) == []
    store.close()


def test_a_killed_writer_leaves_a_working_store(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from collectives.rendezvous.file import FileStore\n"
        "store = FileStore(sys.argv[1])\n"
        "turn = 0\n"
        "while True:\n"
        "    turn += 1\n"
        "    store.set('a', b'x' * (turn % 7 * 1000))\n"
        "    store.add('n', 1)\n"
        "    store.compare_set('c', None, b'1')\n"
        "    store.delete(['c'])\n"
    )
    store = FileStore(tmp_path)
    for _ in range(8):
        before = int(store.get("n") or 0)
        worker = python(code, str(tmp_path))
        assert eventually(lambda before=before: int(store.get("n") or 0) > before + 3, 60)  # type: ignore[misc]
        worker.send_signal(signal.SIGKILL)
        worker.communicate(timeout=60)
        value = store.get("a")
        assert value is not None and len(value) % 1000 == 0 and set(value) <= {ord("x")}
        total = int(store.get("n") or 0)
        assert store.add("n", 1) == total + 1
        store.delete(["c"])
        assert store.compare_set("c", None, b"mine") == b"mine"
        assert store.delete(["c"]) == 1
    store.delete(["a", "n"])
    # at most the one value or token each of them was about to store
    assert len(os.listdir(tmp_path)) <= 8
    assert {name[:2] for name in os.listdir(tmp_path)} <= {"v.", "t."}
    store.close()


def test_polls_are_never_busy(tmp_path: Path) -> None:
    """Looks at the directory, as the interpreter's own audit events tell: at least 10 ms apart after 100 ms."""
    code = (
        "import json, sys, time\n"
        "from collectives.rendezvous.file import FileStore\n"
        "from collectives.native.errors import OpTimeout\n"
        "store = FileStore(sys.argv[1])\n"
        "looks = []\n"
        "def hook(event, arguments):\n"
        "    if event == 'open' and arguments[0] == sys.argv[1]: looks.append(time.monotonic())\n"
        "sys.addaudithook(hook)\n"
        "start = time.monotonic()\n"
        "for timeout in (0.3, 0.3, 0.3):\n"  # as someone waits who looks elsewhere in between
        "    try: store.wait(['never'], timeout)\n"
        "    except OpTimeout: pass\n"
        "    store.get('other')\n"
        "print(json.dumps([look - start for look in looks]))\n"
    )
    worker = python(code, str(tmp_path))
    output, errors = worker.communicate(timeout=60)
    assert worker.returncode == 0, errors
    looks = json.loads(output)
    late = [(a, b) for a, b in itertools.pairwise(looks) if a > 0.1]
    assert len(looks) > 10
    # Counted, not timed one by one: a machine that is loaded looks later than it wants to, and so never more often. One
    # last look at each of the three deadlines, and one that a late look has brought near the next.
    spent = late[-1][1] - late[0][0] if late else 0.0
    assert len(late) <= spent / 0.0099 + 6, late


@pytest.mark.parametrize("prepare", ["file", "dangling", "missing-proc"])
def test_an_unusable_directory_is_named_at_once(tmp_path: Path, prepare: str) -> None:
    target = tmp_path / "there"
    if prepare == "file":
        target.write_text("not a directory")
    elif prepare == "dangling":
        target.symlink_to(tmp_path / "missing" / "deeper")
        (tmp_path / "missing").write_text("in the way")
    else:
        target = Path("/proc/there")
    with pytest.raises(StoreError, match=str(target)):
        FileStore(target)


def test_no_permission_is_a_store_error_at_once(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = (
        "import os, sys\n"
        "from collectives.native.errors import StoreError\n"
        "from collectives.rendezvous.file import FileStore\n"  # before the import path may become unreadable
        "os.chmod(sys.argv[1], 0o500)\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"  # permissions do not bind root
        "try: FileStore(sys.argv[1])\n"
        "except StoreError as error: print(error)\n"
    )
    worker = python(code, str(closed))
    output, errors = worker.communicate(timeout=60)
    assert worker.returncode == 0, errors
    assert f"{closed}: cannot use the directory: Permission denied" in output


def test_a_directory_that_vanishes_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "gone"
    store = FileStore(root)
    root.rmdir()
    for call in (lambda: store.set("a", b"1"), lambda: store.wait(["a"], 5), lambda: store.compare_set("a", None, b"")):
        with pytest.raises(StoreError, match="gone"):
            call()
    store.close()


def test_a_look_without_patience_is_not_confused_by_changes(tmp_path: Path) -> None:
    """The value moves between the look at its name and the look into it, and there is no time left: no error."""
    store = FileStore(tmp_path)
    store.set("k", b"0")
    stop = threading.Event()

    def change() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            store.set("k", str(number).encode())

    writers = [threading.Thread(target=change) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(3000):
            value = store.get("k", timeout=0)
            assert value is not None and value.isdigit()
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def test_a_value_that_was_removed_by_hand_is_an_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.set("k", b"0")
    store.set("k", b"1")  # from now on the value lies beside the key
    (value,) = tmp_path.glob("v.*")
    value.unlink()
    with pytest.raises(StoreError, match="was it removed"):
        store.get("k", timeout=0.1)


def test_foreign_files_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    (tmp_path / "t.leftover").mkdir()
    (tmp_path / "v.leftover").write_bytes(b"")
    (tmp_path / "k.a").mkdir()  # as after a crash between the two steps of a removal
    store = FileStore(tmp_path)
    assert store.get("a") is None
    assert store.compare_set("a", None, b"1") == b"1"
    assert store.delete(["a"]) == 1
    assert sorted(os.listdir(tmp_path)) == ["README", "t.leftover", "v.leftover"]
    (tmp_path / "k.a").mkdir()
    assert store.delete(["a"]) == 0
    assert not (tmp_path / "k.a").exists()
    store.close()


def test_what_dead_writers_left_is_removed_after_a_day(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.set("a", b"1")
    store.set("a", b"2")  # a value in a file of its own
    kept = set(os.listdir(tmp_path))
    yesterday = os.stat(tmp_path).st_mtime - 100_000
    for name in ("t.old", "t.new", "README.old"):
        (tmp_path / name).mkdir()
    for name in ("v.old", "v.new", "t.old/i.old"):
        (tmp_path / name).write_bytes(b"")
    for name in (*kept, "v.old", "t.old", "README.old"):
        os.utime(tmp_path / name, (yesterday, yesterday))
    FileStore(tmp_path).close()
    assert set(os.listdir(tmp_path)) == kept | {"t.new", "v.new", "README.old"}
    assert store.get("a") == b"2"
    store.close()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    root = tmp_path / "made"
    previous = os.umask(0)
    try:
        store = FileStore(root)
        store.set("a", b"1")
        store.set("a", b"2")
    finally:
        os.umask(previous)
    modes = [
        os.stat(os.path.join(folder, name)).st_mode & 0o077 for folder, _, names in os.walk(root) for name in names
    ]
    assert root.stat().st_mode & 0o077 == 0
    assert modes and not any(modes)
    store.close()
