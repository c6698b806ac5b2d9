"""collectives.jax between processes, by both ways that compiled functions have to the library.

Invariant: each rank is a process with a JAX of its own, as users' are; what the ranks find is asserted there.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import collectives
from collectives import native
from tests.depth import LONG
from tests.launched import Launched, launched
from tests.lazily import needs
from tests.native.test_stub import compiled, declared
from tests.warm.parents import JAX, QUICK_XLA

needs("jax", "JAX is not installed: pip install jax")

# Processes import large frameworks, and machines that run tests may have other things to do.
pytestmark = pytest.mark.timeout(240)

HERE = Path(__file__).parent
HOME = Path(collectives.__file__).parents[1]
EXAMPLE = HOME / "examples" / "jax_digits.py"
both_ways = pytest.mark.parametrize("how", ["ffi", "io_callback"])


def same_everywhere(done: Launched) -> list[str]:
    """What all ranks printed."""
    done.succeeded()
    first, *others = done.lines.values()
    assert all(lines == first for lines in others)
    return first


def test_collectives_are_right_compiled_or_not() -> None:
    checks = same_everywhere(
        launched(2, HERE / "worker_ops.py", "ffi", COLLECTIVES_JAX="ffi", warm=JAX, XLA_FLAGS=QUICK_XLA)
    )
    source = ast.parse((HERE / "worker_ops.py").read_text())
    functions = [node.name for node in source.body if isinstance(node, ast.FunctionDef)]
    assert checks == [name.removeprefix("check_") for name in functions if name.startswith("check_")]


def test_callbacks_do_the_same() -> None:
    checks = [
        "results",
        "shapes",
        "dtypes",
        "control_flow",
        "order",
        "order_of_calls",
        "operands_stay",
        "trees",
        "bytes",
    ]
    ran = launched(
        2, HERE / "worker_ops.py", "io_callback", *checks, COLLECTIVES_JAX="io_callback", warm=JAX, XLA_FLAGS=QUICK_XLA
    )
    assert same_everywhere(ran) == checks


def test_four_ranks() -> None:
    checks = ["results", "messages", "groups"]
    if LONG:  # what two ranks have shown
        checks += ["second_derivative", "order", "metrics", "local_steps"]
    assert same_everywhere(launched(4, HERE / "worker_ops.py", "ffi", *checks, warm=JAX, XLA_FLAGS=QUICK_XLA)) == checks


@both_ways
def test_ranks_that_disagree_all_hear_of_it(how: str) -> None:
    ran = launched(2, HERE / "worker_errors.py", how, "disagree", COLLECTIVES_JAX=how, warm=JAX, XLA_FLAGS=QUICK_XLA)
    assert same_everywhere(ran) == ["trees", "closed", "compiled", "late", "seen by XLA alone", "ends"]


@both_ways
def test_a_killed_rank_is_named(how: str) -> None:
    ran = launched(2, HERE / "worker_errors.py", how, "killed", COLLECTIVES_JAX=how, warm=JAX, XLA_FLAGS=QUICK_XLA)
    assert ran.lines == {0: ["survives"], 1: ["dies"]}, ran
    assert "killed by SIGKILL" in ran.stderr


@pytest.mark.parametrize(
    "check",
    ["no_jax", "no_extension", "other_jaxlib", "arguments", "views", "lowered_for_cuda"],
)
def test_alone(check: str) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join([str(HOME), *sys.path])}
    command = [sys.executable, "-W", "error", str(HERE / "worker_alone.py"), check]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_example_trains() -> None:
    needs("sklearn", "the example's data: pip install scikit-learn")
    ran = launched(2, EXAMPLE, warm=JAX, XLA_FLAGS=QUICK_XLA).succeeded()
    assert "the same bits on 2 ranks" in ran.stdout and "recognised" in ran.stdout


def test_the_stub_matches_the_extension() -> None:
    from collectives.native import _xla

    stub = ast.parse((Path(native.__file__).parent / "_xla.pyi").read_text())
    assert declared(stub.body) == compiled(vars(_xla))
