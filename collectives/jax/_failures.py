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
    """An error of a collective in a compiled function, and the text about it that was passed to XLA."""

    error: BaseException
    text: str


_latest: list[Failure] = []


def keep(error: BaseException, where: str) -> str:
    """Stores `error`, so that `last_error` returns it later; returns a text about it, to be passed to XLA.

    The text consists of `where` the error occurred, its type and its message.
    """
    text = f"{where}: {type(error).__name__}: {error}"
    error.__traceback__ = error.__context__ = error.__cause__ = None
    _latest[:] = [Failure(error, text)]
    return text


def last_error() -> BaseException | None:
    """Returns the error of the collective that failed last inside a compiled function; None if none has failed.

    JAX reports such an error only as a `jax.errors.JaxRuntimeError`. This function returns the original: for example a
    `PeerLost`, whose `ranks` are the lost ranks, or a `DesyncError`.
    """
    return _latest[0].error if _latest else None


@contextmanager
def typed_errors() -> Iterator[None]:
    """A context manager, or decorator, in which collectives raise errors of their own types, not only JaxRuntimeError.

        with collectives.jax.typed_errors():
            train()          # raises e.g. PeerLost, DesyncError or OpTimeout

    At its end, the context manager waits for the collectives that were dispatched in it, so that it can raise their
    errors. The errors are instances of JaxRuntimeError too, so existing handlers still catch them. After an error,
    functions that use another communicator can be called at once.
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
    """Returns `error` as an instance of both its own type and jax.errors.JaxRuntimeError.

    Errors that are not from this library are returned unchanged.
    """
    return caught_as(error, jax.errors.JaxRuntimeError)


def recover() -> None:
    """Lets later collectives run although an earlier one has failed; called before JAX first uses a communicator."""
    if _latest:
        try:
            _effect.wait()
        except jax.errors.JaxRuntimeError:
            _effect.forget()


def _cause(error: jax.errors.JaxRuntimeError) -> BaseException | None:
    if not _latest or _latest[0].text not in str(error):
        return None
    return copy.copy(_latest[0].error)
