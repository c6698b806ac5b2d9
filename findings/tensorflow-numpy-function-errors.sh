#!/usr/bin/env bash
# TensorFlow: which type an error has that a Python function raises inside of tf.numpy_function.
#
# One would guess: an exception of TensorFlow's own, tf.errors.DeadlineExceededError with its error code, comes out of
#   the tf.function as what it is, since TensorFlow has a status code for it.
# What happens: it comes out as tf.errors.UnknownError, with code 2; its type is only part of the text. Of Python's
#   exceptions five classes are told apart: ValueError and TypeError become InvalidArgumentError, StopIteration
#   OutOfRangeError, MemoryError ResourceExhaustedError, NotImplementedError UnimplementedError.
# Versions: tensorflow-cpu 2.21.0, Python 3.11, Linux x86-64.
# Why it matters: users of collectives who wait for a tf.errors class that fits (UnavailableError for a rank that is
#   gone) get UnknownError out of a tf.function, whatever an operation raises. So the error is kept beside TensorFlow,
#   and `collectives.tensorflow.typed_errors()` raises it around the call.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check "tensorflow-cpu==2.21.0"

cat >"$folder/probe.py" <<'PY'
import tensorflow as tf

RAISED = [
    tf.errors.DeadlineExceededError(None, None, "late"),
    tf.errors.UnavailableError(None, None, "gone"),
    TimeoutError("late"),
    ValueError("wrong"),
    StopIteration(),
    MemoryError(),
    NotImplementedError(),
]
print("tensorflow", tf.__version__)
for error in RAISED:

    def body(error=error):
        raise error

    try:
        tf.function(lambda: tf.numpy_function(body, [], tf.float32))()
    except tf.errors.OpError as found:
        print(f"{type(error).__name__} comes out as {type(found).__name__}, code {found.error_code}")
PY
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/probe.py" 2>/dev/null | tee "$folder/output"

diff "$folder/output" - <<'EXPECTED'
tensorflow 2.21.0
DeadlineExceededError comes out as UnknownError, code 2
UnavailableError comes out as UnknownError, code 2
TimeoutError comes out as UnknownError, code 2
ValueError comes out as InvalidArgumentError, code 3
StopIteration comes out as OutOfRangeError, code 11
MemoryError comes out as ResourceExhaustedError, code 8
NotImplementedError comes out as UnimplementedError, code 12
EXPECTED
echo "as described"
