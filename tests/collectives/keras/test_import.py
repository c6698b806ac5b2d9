"""What is said where Keras, or a backend that can exchange gradients, is not there."""

from __future__ import annotations

import os
import subprocess
import sys

import collectives
from tests.lazily import needs

_HOME = os.path.dirname(os.path.dirname(collectives.__file__))


def python(program: str, **environment: str) -> str:
    """Its last words. TensorFlow, which Keras would import to support its other backends, is not there."""
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([_HOME, *sys.path]), **environment}
    command = [sys.executable, "-W", "ignore", "-c", f"import sys; sys.modules['tensorflow'] = None; {program}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=settings, timeout=100)
    return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]


def test_keras_is_missing() -> None:
    output = python("import sys; sys.modules['keras'] = None; import collectives.keras")
    assert output == "ImportError: collectives.keras needs Keras 3: pip install keras tensorflow"


def test_keras_is_too_old() -> None:
    old = "import sys, types; sys.modules['keras'] = types.SimpleNamespace(__version__='2.15.0')"
    output = python(f"{old}; import collectives.keras")
    assert output.startswith("ImportError: collectives.keras needs Keras 3, and this is 2.15.0")


def test_a_backend_that_is_missing() -> None:
    needs("keras", "pip install keras tensorflow")
    output = python("import sys; sys.modules['jax'] = None; import collectives.keras", KERAS_BACKEND="jax")
    assert output.startswith("ImportError: Keras's backend needs 'jax")


def test_a_backend_that_cannot() -> None:
    needs("keras", "pip install keras tensorflow")
    needs("jax", "Keras's NumPy backend needs it: pip install jax")
    output = python(
        "import collectives, collectives.keras as hooks\nwith collectives.init(): hooks.DistributedOptimizer('sgd')",
        KERAS_BACKEND="numpy",
        COLLECTIVES_CALIBRATE="off",
    )
    assert "not on 'numpy'" in output and "KERAS_BACKEND=tensorflow" in output
