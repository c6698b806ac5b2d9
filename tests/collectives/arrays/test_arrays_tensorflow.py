"""TensorFlow's and Keras's values given to a communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives.arrays import array as arrays
from collectives.core.communicator import Communicator
from tests.collectives.groups import ranks
from tests.lazily import Lazily

tf = Lazily("tensorflow", "TensorFlow is not installed")
keras = Lazily("keras", "Keras is not installed")

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "variable": (lambda: tf.Variable([1.0]), r"a variable.*numpy.asarray\(x\).*x.assign\(result\)"),
    "keras variable": (lambda: keras.Variable(np.ones(2)), r"a variable.*numpy.asarray\(x\).*x.assign\(result\)"),
    "ragged": (lambda: tf.ragged.constant([[1.0], [1.0, 2.0]]), r"x.flat_values and x.row_lengths\(\)"),
    "sparse": (lambda: tf.sparse.from_dense(tf.eye(2)), r"tf.sparse.to_dense\(x\)"),
    "slices": (lambda: tf.IndexedSlices(tf.ones(2), tf.constant([0, 1])), r"tf.convert_to_tensor\(x\)"),
    "strings": (lambda: tf.constant(["a"]), "dtype string, whose elements are no numbers"),
    "quantized": (lambda: tf.bitcast(tf.constant([1, 2], tf.int8), tf.qint8), r"tf.bitcast\(x, tf.int8\)"),
    "symbolic": (lambda: keras.KerasTensor((2,)), "values that are not there yet"),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("use", [arrays.reading, arrays.writing])
def test_what_is_no_tensor_of_numbers_is_refused(name: str, use: Callable[[Any, str], Any]) -> None:
    make, words = REFUSED[name]
    with pytest.raises(TypeError, match=words):
        use(make(), "x")


def test_tensors_of_a_graph_are_refused() -> None:
    seen = []

    @tf.function
    def function(x: Any) -> Any:
        with pytest.raises(TypeError, match=r"being traced.*collectives.tensorflow.allreduce"):
            arrays.reading(x)
        seen.append(x)
        return x

    function(tf.ones(2))
    assert seen


def test_tensors_are_read_without_a_copy_and_never_written() -> None:
    x = tf.ones(1000)
    assert not arrays.reading(x).flags.owndata
    for tensor in (x, tf.zeros((0, 3)), tf.cast(x, tf.bfloat16)):
        with pytest.raises(ValueError, match="read-only, as every TensorFlow tensor is"):
            arrays.writing(tensor)


def test_no_rank_of_a_broadcast_goes_on_alone() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(ValueError, match="read-only"):
            comm.broadcast(tf.ones(2), 0)
        assert comm.allreduce(tf.ones(2)).tolist() == [2, 2]

    ranks(2, body)


def test_bfloat16_is_reduced() -> None:
    def body(comm: Communicator) -> None:
        total = comm.allreduce(tf.constant([1.5, -2.0], tf.bfloat16))
        assert total.dtype == ml_dtypes.bfloat16 and total.tolist() == [3, -4]

    ranks(2, body)


def test_float8_is_moved_and_not_reduced() -> None:
    kind = getattr(tf.dtypes.experimental, "float8_e4m3fn", None)
    if kind is None:
        pytest.skip(f"TensorFlow {tf.__version__} has no float8")

    def body(comm: Communicator) -> None:
        x = tf.cast([1.0, -2.0], kind)
        assert comm.allgather(x).astype(np.float32).tolist() == [[1, -2]] * 2
        with pytest.raises(TypeError, match="float8_e4m3fn, which can be moved"):
            comm.allreduce(x)

    ranks(2, body)
