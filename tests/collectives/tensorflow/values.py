"""How checks of tensors call an operation, and compare its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def both(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    """What comes of it at once, and in tf.functions that know shapes, no first extents, and nothing of them."""
    rows = [tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype) for x in inputs]
    nothing = [tf.TensorSpec(None, x.dtype) for x in inputs]
    traced = [
        tf.function(function, autograph=False),
        tf.function(function, autograph=False, input_signature=rows),
        tf.function(function, autograph=False, input_signature=nothing),
    ]
    return [run(*inputs) for run in (function, *traced)]


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
