"""Keeps errors raised inside compiled functions, so that users get them with their own types.

Invariant: XLA passes on only an error's text, so the latest error itself is kept here. Its traceback is not kept,
because the frames of a traceback refer to views of buffers that XLA frees.
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
    """An error in a compiled function, and the text that XLA was given for it."""

    error: BaseException
    text: str


_latest: list[Failure] = []


def keep(error: BaseException, where: str) -> str:
    """Keep `error` as the latest one; returns the text for XLA: `where` it occurred, the error's type, and its text."""
    text = f"{where}: {type(error).__name__}: {error}"
    error.__traceback__ = error.__context__ = error.__cause__ = None
    _latest[:] = [Failure(error, text)]
    return text


def last_error() -> BaseException | None:
    """The error of the collective that failed last inside a compiled function, or None.

    JAX reports such an error only as a `jax.errors.JaxRuntimeError`. This function returns the original: for example a
    `PeerLost`, whose `ranks` are the lost ranks, or a `DesyncError`.
    """
    return _latest[0].error if _latest else None


@contextmanager
def typed_errors() -> Iterator[None]:
    """A context, or decorator, in which errors of collectives have their own types instead of only JaxRuntimeError.

        with collectives.jax.typed_errors():
            train()          # raises e.g. PeerLost, DesyncError or OpTimeout

    At its end, the context waits for the collectives that were dispatched inside, so that their errors are raised here.
    The errors are also instances of JaxRuntimeError, so existing handlers still catch them. After an error, functions
    that use another communicator can be called at once.
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
    """`error` as an instance of both its own type and jax.errors.JaxRuntimeError.

    Errors that are not from this library are returned unchanged.
    """
    return caught_as(error, jax.errors.JaxRuntimeError)


def recover() -> None:
    """Make later collectives independent of one that has failed; called before JAX first uses a communicator."""
    if _latest:
        try:
            _effect.wait()
        except jax.errors.JaxRuntimeError:
            _effect.forget()


def _cause(error: jax.errors.JaxRuntimeError) -> BaseException | None:
    if not _latest or _latest[0].text not in str(error):
        return None
    return copy.copy(_latest[0].error)
