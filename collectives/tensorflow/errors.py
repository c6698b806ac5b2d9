"""Converts errors of collectives, so that users can catch them by classes of `tf.errors` or by this library's types.

Invariant: each converted error is an instance of its own type, of tf.errors.UnknownError, and of the class of
`tf.errors` for the same kind of failure, if there is one. TensorFlow itself raises UnknownError for all errors of
Python operations. The attribute `error_code` belongs to the class for the kind of failure.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from collectives.core.caught_as import E, caught_as
from collectives.native.errors import (
    Aborted,
    AuthError,
    ConfigMismatch,
    DesyncError,
    OpTimeout,
    PeerLost,
    StoreError,
    TransportUnavailable,
)

_FITTING: Final[dict[type[BaseException], tuple[type[Exception], int]]] = {
    PeerLost: (tf.errors.UnavailableError, tf.errors.UNAVAILABLE),
    OpTimeout: (tf.errors.DeadlineExceededError, tf.errors.DEADLINE_EXCEEDED),
    DesyncError: (tf.errors.FailedPreconditionError, tf.errors.FAILED_PRECONDITION),
    ConfigMismatch: (tf.errors.FailedPreconditionError, tf.errors.FAILED_PRECONDITION),
    Aborted: (tf.errors.AbortedError, tf.errors.ABORTED),
    StoreError: (tf.errors.UnavailableError, tf.errors.UNAVAILABLE),
    TransportUnavailable: (tf.errors.UnavailableError, tf.errors.UNAVAILABLE),
    AuthError: (tf.errors.UnauthenticatedError, tf.errors.UNAUTHENTICATED),
}


def as_tensorflow(error: E) -> E:
    """Returns `error` as an instance of both its own type and the matching class of `tf.errors`.

    Errors that are not from this library are returned unchanged.
    """
    fitting = next((found for ours, found in _FITTING.items() if isinstance(error, ours)), None)
    code = tf.errors.UNKNOWN if fitting is None else fitting[1]

    def setup(made: Any) -> None:
        # The class's own constructor would call another base's constructor instead of OpError's.
        tf.errors.OpError.__init__(made, None, None, str(error), code)

    return caught_as(error, *(() if fitting is None else fitting[:1]), tf.errors.UnknownError, setup=setup)
