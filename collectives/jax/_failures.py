"""Keeps errors raised inside compiled functions, so that users get them with their own types.

Invariant: XLA passes on only a text, so the error is kept here. Its traceback is not kept, because its frames refer to
views of buffers that XLA frees.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax

from collectives.core.caught_as import E, caught_as
from collectives.jax import _effect


class Failure(NamedTuple):
    """An error, and the text that XLA was given for it."""

    error: BaseException
    text: str


_latest: list[Failure] = []


def keep(error: BaseException, where: str) -> str:
    """Keep `error`; returns the text for XLA, with the location of the error."""
    text = f"{where}: {type(error).__name__}: {error}"
    error.__traceback__ = error.__context__ = error.__cause__ = None
    _latest[:] = [Failure(error, text)]
    return text


def last_error() -> BaseException | None:
    """The error of the collective that failed last inside a compiled function, or None.

    This error caused the `jax.errors.JaxRuntimeError`. It may be a `PeerLost` with its `ranks`, a `DesyncError`, ...
    """
    return _latest[0].error if _latest else None


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise errors of collectives with their own types, instead of the JaxRuntimeError that XLA makes of them.

        with collectives.jax.typed_errors():
            train()          # PeerLost, DesyncError, OpTimeout, ...

    Waits at the end for the collectives that were dispatched inside, so that their errors are raised here. After an
    error, functions that use another communicator can be called at once. May be used as a decorator. The errors are
    also JaxRuntimeErrors, so handlers of JaxRuntimeError catch them.
    """
    try:
        yield
        _effect.wait()
    except jax.errors.JaxRuntimeError as error:
        cause = _cause(error)
        if cause is None:
            raise
        _effect.forget()
        raise as_jax(cause) from error


def as_jax(error: E) -> E:
    """The error, also as a jax.errors.JaxRuntimeError; errors of other libraries are returned unchanged."""
    return caught_as(error, jax.errors.JaxRuntimeError)


def recover() -> None:
    """Called before a new communicator is used: make its collectives independent of a collective that failed."""
    if _latest:
        try:
            _effect.wait()
        except jax.errors.JaxRuntimeError:
            _effect.forget()


def _cause(error: jax.errors.JaxRuntimeError) -> BaseException | None:
    if not _latest or _latest[0].text not in str(error):
        return None
    return copy.copy(_latest[0].error)
