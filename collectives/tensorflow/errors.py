"""Errors of collectives as TensorFlow's users catch them: `tf.errors`, besides this library's own types.

Invariant: each error is a tf.errors.UnknownError, the type in which TensorFlow passes on errors of operations in
Python, and of TensorFlow's own class for such a failure. `error_code` is that of the latter.
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
    """The error, also of the corresponding class of `tf.errors`; errors of other libraries are returned unchanged."""
    fitting = next((found for ours, found in _FITTING.items() if isinstance(error, ours)), None)
    code = tf.errors.UNKNOWN if fitting is None else fitting[1]

    def setup(made: Any) -> None:
        # Not the class's own constructor, which would take the next base's for OpError's.
        tf.errors.OpError.__init__(made, None, None, str(error), code)

    return caught_as(error, *(() if fitting is None else fitting[:1]), tf.errors.UnknownError, setup=setup)
