"""The communicator that hooks take where they are given none: never a guess."""

from __future__ import annotations

from typing import Any

import pytest

import collectives
from collectives.core.default import default, forget, opened


def test_the_one_that_is_open() -> None:
    with pytest.raises(RuntimeError, match=r"no communicator is open .* call collectives.init\(\) first"):
        default()
    with collectives.init(name="first") as first:
        assert default() is first and default(first) is first
        child = first.dup()
        assert default() is first  # what is made of it is for its maker
        child.close()
        with collectives.init(name="second") as second:
            assert opened() == [first, second] and default(second) is second
            with pytest.raises(RuntimeError, match=r"2 communicators are open .*'first' .*, 'second' .* as comm="):
                default()
        assert default() is first
        forget(first)
        assert opened() == []


def test_what_is_none() -> None:
    with pytest.raises(TypeError, match="comm must be a Communicator, not str"):
        default("world")  # type: ignore[arg-type]


def test_one_that_nobody_holds_any_more() -> None:
    collectives.init()
    assert opened() == []


def test_a_cell_that_is_run_twice_learns_what_to_close() -> None:
    """In a notebook `comm = init()`, run again while something else still holds the first one."""
    cell = compile("comm = collectives.init()", "/tmp/ipykernel_1/cell.py", "exec")
    namespace: dict[str, Any] = {"collectives": collectives}
    exec(cell, namespace)
    first = namespace["comm"]
    exec(cell, namespace)
    where = r"'default' made at /tmp/ipykernel_1/cell\.py:1"
    with pytest.raises(RuntimeError, match=rf"{where}, {where}\): close the one that is over by its close\(\)"):
        default()
    first.close()
    assert default() is namespace["comm"]
    exec(cell, namespace)  # without another holder the first one goes by itself
    del first
    assert default() is namespace["comm"]
    default().close()
