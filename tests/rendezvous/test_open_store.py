"""Opening stores by URL: which store comes, and what is wrong with a URL that names none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collectives.native.errors import StoreError, TransportUnavailable
from collectives.rendezvous import PrefixStore, Store, open_store
from collectives.rendezvous.file import FileStore
from collectives.rendezvous.group import form
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.tcp import TcpStore


def test_unknown_schemes_are_refused_with_those_there_are() -> None:
    for url in ("etcd://host", "http://host", "/just/a/path", "", "memory", "tcp:/host:1", "REDIS://host"):
        with pytest.raises(ValueError, match=r"memory://, file://, redis://, rediss://, tcp://, mpi://"):
            open_store(url)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("file://relative/dir", "absolute path"),
        ("file://", "absolute path"),
        ("file:///dir?mode=1", r"\?"),
        ("file:///dir#part", "#"),
        ("tcp://host", "tcp://host:port"),
        ("tcp://:1234", "no host"),
        ("tcp://host:99999", "port"),
        ("tcp://host:port", "port"),
        ("tcp://host:1/path", "tcp://host:port"),
        ("tcp://user@host:1", "tcp://host:port"),
        ("tcp://host:0", "port 0"),
        ("redis://", "no host"),
        ("redis://host/name", "database"),
        ("redis://host/-1", "database"),
        ("redis://host?ca=/x", r"\?"),
        ("rediss://host?nonsense=1", r"\?"),
        ("mpi://host", "mpi:// has no host"),
    ],
)
def test_malformed_urls(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        open_store(url, timeout=1)


def test_passwords_are_not_repeated() -> None:
    for url in ("redis://:hunter2@host/name", "nonsense://user:hunter2@host", "redis://u:hunter2@h:99999"):
        with pytest.raises(ValueError) as caught:
            open_store(url)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(StoreError) as refused:
        open_store("redis://u:hunter2@127.0.0.1:1", timeout=0)
    assert "hunter2" not in str(refused.value)


def test_a_store_is_passed_through() -> None:
    store = MemoryStore("passed")
    view = PrefixStore(store, "p")
    assert open_store(store) is store
    assert open_store(view) is view
    store.close()


def test_six_methods_make_a_store() -> None:
    """Somebody's own store, even one that answers for another by attribute."""

    class Proxy:
        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            if name == "close":
                raise AttributeError(name)
            return getattr(self._store, name)

    inner = MemoryStore("proxied")
    proxy: Any = Proxy(inner)
    assert open_store(proxy) is proxy
    view = PrefixStore(proxy, "p:")
    member = form(view, rank=0, size=1, name="n", record={"a": 1}, fingerprint="f")
    assert member.records == ({"a": 1},)
    view.close()
    assert len(inner._space.table) == 0
    inner.close()


def test_what_is_no_store_is_a_type_error() -> None:
    wrong: Any
    for wrong in (None, 5, b"memory://a", Path("/tmp"), object()):
        with pytest.raises(TypeError):
            open_store(wrong)
    with pytest.raises(TypeError, match=r"no set\(\)"):
        PrefixStore(object(), "p")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"no set\(\)"):
        form(object(), rank=0, size=1, name="n", record={}, fingerprint="f")  # type: ignore[arg-type]


def test_bad_timeouts_come_first() -> None:
    for timeout in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="timeout"):
            open_store("tcp://127.0.0.1:1", timeout=timeout)


def test_names_and_paths_are_unquoted(tmp_path: Path) -> None:
    memory = open_store("memory://a%20b")
    assert repr(memory) == "memory://a b"
    memory.close()
    file = open_store((tmp_path / "with space?").as_uri())
    assert isinstance(file, FileStore)
    assert (tmp_path / "with space?").is_dir()
    file.close()


def test_every_store_is_a_store(tmp_path: Path) -> None:
    server = open_store("tcp://127.0.0.1:0", host=True)
    assert isinstance(server, TcpStore)
    assert server.port > 0
    client = open_store(server.url)
    for store in (server, client, open_store("memory://x"), open_store(tmp_path.as_uri())):
        assert isinstance(store, Store)
        store.close()


def test_memory_is_shared_by_name_and_ends_with_its_last_user() -> None:
    one, same, other = open_store("memory://one"), open_store("memory://one"), open_store("memory://other")
    one.set("a", b"1")
    assert same.get("a") == b"1"
    assert other.get("a") is None
    one.close()
    assert same.get("a") == b"1"
    same.close()
    again = open_store("memory://one")
    assert again.get("a") is None
    again.close()
    other.close()


def test_prefixes_keep_apart() -> None:
    store = MemoryStore("prefixes")
    one, other = PrefixStore(store, "one:"), PrefixStore(store, "other:")
    one.set("a", b"1")
    other.set("a", b"2")
    assert (one.get("a"), other.get("a"), store.get("one:a")) == (b"1", b"2", b"1")
    one.close()
    assert other.get("a") == b"2"
    store.close()


def test_mpi_without_mpi4py_says_what_to_install() -> None:
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        with pytest.raises(TransportUnavailable, match="pip install mpi4py"):
            open_store("mpi://")
    else:
        pytest.skip("mpi4py is installed; test_mpi.py covers this machine")
