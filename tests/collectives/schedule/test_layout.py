"""Layouts are values: what they say of ranks and hosts, when they are equal, and what is no layout."""

from __future__ import annotations

import pytest

from collectives.algorithms import get, schedule
from collectives.schedule import Layout
from collectives.schedule.layout import apart, even


def test_hosts_are_numbered_by_their_first_ranks() -> None:
    layout = Layout.of(["b", "a", "b", ("c", 1), "a"])
    assert layout.hosts == (0, 1, 0, 2, 1)
    assert layout.members == ((0, 2), (1, 4), (3,))
    assert layout.size == 5
    assert [layout.local_rank(rank) for rank in range(5)] == [0, 0, 1, 0, 1]
    assert str(layout) == "3 hosts with ranks 0,2 | 1,4 | 3"


def test_the_others_of_a_host_begin_with_the_next_one() -> None:
    layout = Layout.of("xyxxyx")
    assert layout.beside(0) == (2, 3, 5)
    assert layout.beside(3) == (5, 0, 2)
    assert layout.beside(4) == (1,)
    assert apart(3).beside(1) == ()


def test_names_of_hosts_do_not_matter() -> None:
    one, other = Layout.of("aab"), Layout.of([7, 7, 3])
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    assert one != Layout.of("aba")


def test_hosts_filled_one_after_the_other() -> None:
    assert even(7, 3).members == ((0, 1, 2), (3, 4, 5), (6,))
    assert even(3, 5).members == ((0, 1, 2),)
    assert apart(3).members == ((0,), (1,), (2,))


def test_nested_is_several_hosts_with_several_ranks() -> None:
    assert [even(4, n).nested for n in (1, 2, 3, 4)] == [False, True, True, False]


@pytest.mark.parametrize("hosts", [(1, 0), (0, 2), (0, -1)])
def test_other_numbers_are_refused(hosts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="hosts are numbered in the order of their first ranks"):
        Layout(hosts)


def test_algorithms_take_a_layout_of_their_size() -> None:
    assert schedule("allreduce", "ring", 1, 4, layout=even(4, 2)) == schedule("allreduce", "ring", 1, 4)
    alone = schedule("allreduce", "hierarchical_ring", 1, 4)
    assert alone == schedule("allreduce", "hierarchical_ring", 1, 4, layout=apart(4))
    assert alone != schedule("allreduce", "hierarchical_ring", 1, 4, layout=even(4, 2))
    with pytest.raises(ValueError, match="a layout of 3 ranks was given for 4 ranks"):
        get("allreduce", "ring")(0, 4, layout=apart(3))
