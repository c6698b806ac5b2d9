"""What every store must do, on every store."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.native.errors import OpTimeout
from collectives.rendezvous.store import MAX_KEY, MAX_VALUE, Store
from tests.rendezvous.backends import Backend
from tests.rendezvous.threads import background, together
from tests.waiting import AT_ONCE

SLACK = AT_ONCE
KEYS = ("a", "A", "a/b", "a%2Fb", ".", "..", "a b", "ü€𝄞", "~*?[x]:{}'\"\\", "k" * MAX_KEY, "k" * (MAX_KEY - 1) + "j")


def test_what_is_set_is_got(store: Store) -> None:
    assert store.get("a") is None
    store.set("a", b"1")
    assert store.get("a") == b"1"
    store.set("a", b"22")
    assert store.get("a") == b"22"


def test_values_are_any_bytes(store: Store) -> None:
    for value in (b"", b"\0", b"\r\n$-1\r\n", bytes(range(256)), b"0"):
        store.set("a", value)
        assert store.get("a") == value
        assert store.wait(["a"], 5) == [value]
        assert store.compare_set("a", value, b"next") == b"next"


def test_bytes_like_values_are_copied(store: Store) -> None:
    data = bytearray(b"before")
    store.set("a", data)  # type: ignore[arg-type]
    data[:] = b"after."
    assert store.get("a") == b"before"
    store.set("b", memoryview(b"xyz")[1:])  # type: ignore[arg-type]
    assert store.get("b") == b"yz"


def test_keys_are_any_text_and_never_mixed_up(store: Store) -> None:
    prefix_room = [key for key in KEYS if len(key) < MAX_KEY - 20] if "prefix" in repr(store) else KEYS
    for number, key in enumerate(prefix_room):
        store.set(key, str(number).encode())
    expected = [str(number).encode() for number in range(len(prefix_room))]
    assert [store.get(key) for key in prefix_room] == expected
    assert store.wait(prefix_room, 5) == expected
    assert store.delete(prefix_room) == len(prefix_room)


def test_two_clients_see_the_same(any_backend: Backend, store: Store) -> None:
    other = any_backend.open()
    store.set("a", b"1")
    assert other.get("a") == b"1"
    assert other.delete(["a"]) == 1
    assert store.get("a") is None
    other.close()
    store.set("a", b"2")  # one client's end is not the other's


def test_keys_outlive_the_client_that_set_them(any_backend: Backend) -> None:
    first = any_backend.open()
    first.set("a", b"1")
    first.close()
    second = any_backend.open()
    assert second.get("a") == b"1"
    second.close()


@pytest.mark.parametrize("size", [1 << 20, MAX_VALUE])
def test_big_values(store: Store, size: int) -> None:
    value = (bytes(range(251)) * (size // 251 + 1))[:size]
    store.set("a", value)
    assert store.get("a") == value
    assert store.wait(["a"], 30) == [value]


def test_too_big_a_value_is_refused_before_anything_is_sent(store: Store, any_backend: Backend) -> None:
    with pytest.raises(ValueError, match=str(MAX_VALUE)):
        store.set("a", bytes(MAX_VALUE + 1))
    with pytest.raises(ValueError, match=str(MAX_VALUE)):
        store.compare_set("a", None, bytes(MAX_VALUE + 1))
    assert any_backend.leftovers() == 0


def test_delete_counts_what_was_there(store: Store) -> None:
    store.set("a", b"1")
    store.set("b", b"2")
    assert store.delete(["a", "missing", "b"]) == 2
    assert store.delete(["a", "b"]) == 0
    assert store.delete([]) == 0
    store.set("a", b"3")
    assert store.get("a") == b"3"


def test_nothing_is_left_when_all_keys_are_deleted(store: Store, any_backend: Backend) -> None:
    store.set("a", b"1")
    store.set("a", b"2")
    store.add("n", 5)
    store.add("n", 5)
    store.compare_set("c", None, b"x")
    store.compare_set("c", b"x", b"y")
    store.compare_set("c", b"y", None)
    thread, _ = background(lambda: store.wait(["a", "n", "w"], 30))
    with pytest.raises(OpTimeout):
        store.wait(["a", "w2"], 0.2)
    store.set("w", b"1")
    thread.join(30)
    store.delete(["a", "n", "w"])
    assert any_backend.leftovers() == 0


# -- wait


def test_wait_returns_values_in_the_order_asked(store: Store) -> None:
    for key in "abc":
        store.set(key, key.encode())
    assert store.wait(["c", "a", "b", "a"], 5) == [b"c", b"a", b"b", b"a"]
    assert store.wait([], 0) == []
    assert store.wait("a", 5) == [b"a"]  # one key, not its characters


def test_wait_wakes_when_the_key_appears(any_backend: Backend, store: Store) -> None:
    ways: list[Callable[[str], Any]] = [
        lambda key: store.set(key, b"7"),
        lambda key: store.add(key, 7),
        lambda key: store.compare_set(key, None, b"7"),
    ]
    others = [any_backend.open() for _ in ways]
    waits = [background(lambda n=n: others[n].wait([f"key/{n}"], 60)) for n in range(len(ways))]  # type: ignore[misc]
    with pytest.raises(OpTimeout):
        store.wait(["never"], 0.2)  # meanwhile the others are certainly asleep
    for number, way in enumerate(ways):
        thread, outcome = waits[number]
        assert thread.is_alive()
        way(f"key/{number}")
        thread.join(SLACK)
        assert not thread.is_alive()
        assert outcome.value == [b"7"]
        others[number].close()


def test_wait_wants_all_keys_at_once(any_backend: Backend, store: Store) -> None:
    other = any_backend.open()
    thread, outcome = background(lambda: other.wait(["a", "b"], 60))
    store.set("a", b"1")
    with pytest.raises(OpTimeout):
        store.wait(["b"], 0.2)
    store.delete(["a"])
    store.set("b", b"2")
    with pytest.raises(OpTimeout):
        store.wait(["a"], 0.3)
    assert thread.is_alive()  # both have been there, but never together
    store.set("a", b"3")
    thread.join(SLACK)
    assert outcome.value == [b"3", b"2"]
    other.close()


def test_a_wait_that_ends_leaves_nothing_although_keys_were_deleted_meanwhile(
    any_backend: Backend, store: Store
) -> None:
    other = any_backend.open()
    store.set("a", b"1")
    thread, outcome = background(lambda: other.wait(["a", "b"], 1.0))
    with pytest.raises(OpTimeout):
        store.wait(["b"], 0.4)  # meanwhile the other one has begun to wait for b
    store.delete(["a"])  # from now on a is the first key that it lacks
    thread.join(SLACK)
    assert isinstance(outcome.error, OpTimeout)
    other.close()
    assert any_backend.leftovers() == 0


def test_many_wait_for_one_and_one_waits_for_many(any_backend: Backend) -> None:
    count = 32

    def member(rank: int) -> bytes:
        mine = any_backend.open()
        try:
            mine.set(f"slot/{rank}", str(rank).encode())
            return mine.wait(["go"], 30)[0]
        finally:
            mine.close()

    def host() -> bytes:
        mine = any_backend.open()
        try:
            slots = mine.wait([f"slot/{rank}" for rank in range(count)], 30)
            mine.set("go", b"".join(slots))
            return mine.wait(["go"], 30)[0]
        finally:
            mine.close()

    work: list[Callable[[], bytes]] = [lambda rank=rank: member(rank) for rank in range(count)]  # type: ignore[misc]
    outcomes = together([*work, host])
    assert {outcome.value for outcome in outcomes} == {b"".join(str(rank).encode() for rank in range(count))}


def test_wait_ends_at_its_deadline_and_names_what_is_missing(store: Store) -> None:
    store.set("here", b"1")
    start = time.monotonic()
    with pytest.raises(OpTimeout, match=r"lost'.*gone'") as caught:
        store.wait(["lost", "here", "gone"], 0.4)
    elapsed = time.monotonic() - start
    assert 0.4 <= elapsed < 0.4 + SLACK
    assert "here'" not in str(caught.value)
    assert re.search(r"within \d+\.\d s", str(caught.value))


def test_long_lists_of_missing_keys_are_cut(store: Store) -> None:
    with pytest.raises(OpTimeout, match=r"1000 keys did not appear.*and 992 more"):
        store.wait([f"k{number}" for number in range(1000)], 0)


def test_wait_without_time_only_looks(store: Store) -> None:
    start = time.monotonic()
    with pytest.raises(OpTimeout):
        store.wait(["a"], 0)
    assert time.monotonic() - start < SLACK
    store.set("a", b"1")
    assert store.wait(["a"], 0) == [b"1"]


# -- add and compare_set


def test_add_counts_from_nothing(store: Store) -> None:
    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.add("n", 0) == -2
    assert store.get("n") == b"-2"
    store.set("n", b"40")
    assert store.add("n", 2) == 42


def test_add_to_what_is_no_number_changes_nothing(store: Store) -> None:
    for value in (b"x", b"", b" 1", b"1.5", b"0x10", b"1_0", b"007", b"+1", b"-0", "\u0661".encode()):
        store.set("n", value)
        with pytest.raises(ValueError, match="no integer"):
            store.add("n", 1)
        assert store.get("n") == value


def test_add_keeps_to_64_bits(store: Store) -> None:
    assert store.add("n", 2**63 - 1) == 2**63 - 1
    with pytest.raises(ValueError, match="64 bits"):
        store.add("n", 1)
    assert store.get("n") == str(2**63 - 1).encode()
    assert store.add("n", -(2**63)) == -1


def test_64_threads_add_and_none_is_lost(any_backend: Backend) -> None:
    shared = any_backend.open()
    rounds = 4
    outcomes = together([lambda: [shared.add("n", 1, 30) for _ in range(rounds)] for _ in range(64)])
    sums = sorted(total for outcome in outcomes for total in outcome.value)
    assert sums == list(range(1, 64 * rounds + 1))
    shared.close()


def test_compare_set(store: Store) -> None:
    assert store.compare_set("a", b"1", b"2") is None  # absent, and stays so
    assert store.compare_set("a", None, b"1") == b"1"
    assert store.compare_set("a", None, b"2") == b"1"
    assert store.compare_set("a", b"0", b"2") == b"1"
    assert store.compare_set("a", b"1", b"2") == b"2"
    assert store.compare_set("a", b"1", None) == b"2"
    assert store.compare_set("a", b"2", None) is None
    assert store.get("a") is None
    assert store.compare_set("a", None, None) is None
    assert store.compare_set("a", None, b"") == b""
    assert store.compare_set("a", None, b"3") == b""  # empty is not absent
    assert store.compare_set("a", b"", b"3") == b"3"


def test_one_of_many_creates(any_backend: Backend) -> None:
    shared = any_backend.open()

    def create(number: int) -> list[bytes | None]:
        return [shared.compare_set(f"key/{turn}", None, str(number).encode(), 30) for turn in range(8)]

    outcomes = together([lambda number=number: create(number) for number in range(16)])  # type: ignore[misc]
    for turn in range(8):
        seen = {outcome.value[turn] for outcome in outcomes}
        assert seen == {shared.get(f"key/{turn}")}
    shared.close()


def test_compare_set_loses_no_update(any_backend: Backend) -> None:
    shared = any_backend.open()
    shared.set("n", b"0")

    outcomes = together([lambda: _win(shared, 10) for _ in range(8)])
    assert sum(outcome.value for outcome in outcomes) == 80
    assert (shared.get("n") or b"").split(b".")[0] == b"80"
    shared.close()


def _win(store: Store, times: int) -> int:
    """Count up by compare_set until this thread has won so often."""
    me = str(threading.get_ident()).encode()
    known = store.get("n") or b""
    won = 0
    while won < times:
        wanted = str(int(known.split(b".")[0]) + 1).encode() + b"." + me
        found = store.compare_set("n", known, wanted, 30) or b""
        won += found == wanted
        known = found
    return won


def test_creations_and_removals_match(any_backend: Backend) -> None:
    """With several at it, no key is removed twice and none comes back."""
    shared = any_backend.open()

    def work(number: int) -> tuple[int, int]:
        created = removed = 0
        for turn in range(15):
            mine = f"{number}/{turn}".encode()
            found = shared.compare_set("key", None, mine, 30)
            created += found == mine
            shared.compare_set("key", b"never there", None, 30)
            removed += shared.delete(["key"], 30)
        return created, removed

    outcomes = together([lambda number=number: work(number) for number in range(6)])  # type: ignore[misc]
    created = sum(outcome.value[0] for outcome in outcomes)
    removed = sum(outcome.value[1] for outcome in outcomes)
    assert created == removed + shared.delete(["key"])
    assert any_backend.leftovers() == 0
    shared.close()


# -- against a model

OPERATIONS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from("abc"), st.sampled_from([b"1", b"x", b"", b"-5"])),
    st.tuples(st.just("get"), st.sampled_from("abc")),
    st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(-5, 5)),
    st.tuples(
        st.just("compare_set"),
        st.sampled_from("abc"),
        st.sampled_from([None, b"1", b"x", b""]),
        st.sampled_from([None, b"1", b"y"]),
    ),
    st.tuples(st.just("delete"), st.lists(st.sampled_from("abc"), unique=True)),
    st.tuples(st.just("wait"), st.lists(st.sampled_from("abc"), unique=True)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, max_size=12))
def test_behaves_as_a_dictionary(store: Store, operations: list[tuple[Any, ...]]) -> None:
    model: dict[str, bytes] = {}
    try:
        for name, *arguments in operations:
            expected = _model(model, name, arguments)
            if expected is OpTimeout or expected is ValueError:
                with pytest.raises(expected):
                    getattr(store, name)(*arguments, *([0] if name == "wait" else []))
            else:
                assert getattr(store, name)(*arguments) == expected
    finally:
        store.delete("a")
        store.delete(["b", "c"])


def _model(model: dict[str, bytes], name: str, arguments: list[Any]) -> Any:
    key = arguments[0]
    if name == "set":
        model[key] = arguments[1]
        return None
    if name == "get":
        return model.get(key)
    if name == "delete":
        return sum(model.pop(one, None) is not None for one in key)
    if name == "wait":
        return [model[one] for one in key] if all(one in model for one in key) else OpTimeout
    if name == "add":
        try:
            model[key] = str(int(model.get(key, b"0")) + arguments[1]).encode()
        except ValueError:
            return ValueError
        return int(model[key])
    if model.get(key) == arguments[1]:
        model.pop(key, None)
        if arguments[2] is not None:
            model[key] = arguments[2]
    return model.get(key)
