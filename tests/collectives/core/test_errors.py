"""The error tree: what handlers that know Python's own errors catch, and what a framework's handlers catch as well."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

import collectives
from collectives import Communicator
from collectives.core.caught_as import caught_as
from collectives.native import errors
from tests.collectives.groups import ranks

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__base__ is errors.CollectiveError]
EVERY = [
    errors.CollectiveError("base"),
    errors.PeerLost("gone", [3, 1]),
    errors.OpTimeout("late", [2]),
    *(kind("said") for kind in KINDS if kind is not errors.PeerLost),
]


class Theirs(Exception):
    """As frameworks have them: with a text of its own, and state that `setup` makes."""

    def __init__(self, node: object, message: str) -> None:
        super().__init__()
        self.node, self.message = node, message

    def __str__(self) -> str:
        return f"theirs: {self.message}"


class MoreOfTheirs(Theirs, KeyError):
    pass


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_each_is_a_runtime_error_and_survives_pickling(error: errors.CollectiveError) -> None:
    with pytest.raises(RuntimeError):
        raise error
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = [line.split()[1] for line in (errors.__doc__ or "").splitlines() if "──" in line]
    assert sorted(drawn) == sorted(kind.__name__ for kind in {*KINDS, errors.OpTimeout})
    assert issubclass(errors.OpTimeout, TimeoutError) and issubclass(errors.OpTimeout, errors.CollectiveError)
    assert not any(issubclass(kind, OSError) for kind in {*KINDS, errors.CollectiveError} - {errors.OpTimeout})


def test_the_engines_errors_are_runtime_errors_too() -> None:
    over = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            with pytest.raises(RuntimeError) as late:
                comm.barrier(timeout=0.01)
            over.set()
            assert isinstance(late.value, collectives.OpTimeout) and isinstance(late.value, TimeoutError)
            assert late.value.late == (1,) and late.value.errno is None
        else:
            assert over.wait(30)

    ranks(2, body)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("theirs", [(Theirs,), (MoreOfTheirs,), (MoreOfTheirs, Theirs)])
def test_an_error_becomes_theirs_and_stays_ours(
    error: errors.CollectiveError, theirs: tuple[type[Exception], ...]
) -> None:
    made = caught_as(error, *theirs, setup=lambda new: Theirs.__init__(new, "node", "text"))
    assert all(isinstance(made, kind) for kind in (type(error), RuntimeError, *theirs))
    assert str(made) == str(error) and repr(made) == repr(error) and made.args == error.args
    assert {**vars(error), "node": "node", "message": "text"} == vars(made)
    assert type(made).__qualname__ == type(error).__qualname__ and type(made).__module__ == "collectives.native.errors"
    for back in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(back) is type(error) and str(back) == str(error)
    assert caught_as(made, *theirs) is made
    assert type(caught_as(error, *theirs)) is type(made)  # one class, however often


def test_others_errors_stay_as_they_are() -> None:
    other = KeyError("x")
    assert caught_as(other, Theirs) is other


def test_causes_and_traceback_are_kept() -> None:
    def lost() -> None:
        raise errors.PeerLost("gone", [1]) from ValueError("first")

    with pytest.raises(errors.PeerLost) as seen:
        lost()
    made = caught_as(seen.value, Theirs)
    assert made.__cause__ is seen.value.__cause__ and made.__traceback__ is seen.value.__traceback__
