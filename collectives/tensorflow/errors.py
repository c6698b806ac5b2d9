"""Errors of collectives as TensorFlow's users catch them: `tf.errors`, besides this library's own types.

Invariant: each error is an instance of tf.errors.UnknownError, as which TensorFlow passes on errors of Python
operations, and of TensorFlow's own class for the same kind of failure. `error_code` is that of TensorFlow's own class.
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
    """The error, also of the matching class of `tf.errors`; errors of other libraries are returned unchanged."""
    fitting = next((found for ours, found in _FITTING.items() if isinstance(error, ours)), None)
    code = tf.errors.UNKNOWN if fitting is None else fitting[1]

    def setup(made: Any) -> None:
        # The class's own constructor would call another base's constructor instead of OpError's.
        tf.errors.OpError.__init__(made, None, None, str(error), code)

    return caught_as(error, *(() if fitting is None else fitting[:1]), tf.errors.UnknownError, setup=setup)
