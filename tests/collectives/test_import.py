"""What an import brings with it: each part of the library loads only what it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import collectives

ROOT = Path(__file__).parents[2]

FRAMEWORKS = {"torch", "tensorflow", "jax", "keras"}
COMMAND_LINE = {"click", "rich", "matplotlib", "collectives.commands", "collectives.bench"}
STORES = {"redis", "ssl", "mpi4py"}
NEVER = FRAMEWORKS | COMMAND_LINE | STORES
# Imported where it is used: by somebody who awaits, names a dtype that NumPy has not, looks at schedules, measures.
RARE = {
    "asyncio",
    "concurrent.futures",
    "importlib.metadata",
    "ml_dtypes",
    "collectives.calibration",
    "collectives.schedule.drawing",
    "collectives.schedule.listing",
    "collectives.schedule.play",
    "collectives.schedule.verification",
    "collectives.simulation.network",
}


def loaded(program: str) -> set[str]:
    """The modules that there are after `program`, in an interpreter of its own."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(shown.stdout.split())


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "collectives"}


def test_the_package_itself_loads_nothing() -> None:
    found = loaded("import collectives")
    assert ours(found) == {"collectives"}
    assert found & (NEVER | RARE | {"numpy", "socket", "json", "pathlib"}) == set()


def test_the_errors_load_nothing() -> None:
    found = loaded("import collectives.native.errors")
    assert ours(found) == {"collectives", "collectives.native", "collectives.native.errors"}
    assert found & (NEVER | RARE | {"numpy", "socket", "json", "pathlib"}) == set()


def test_an_error_by_its_public_name_loads_no_more() -> None:
    found = loaded("from collectives import PeerLost, OpTimeout")
    assert ours(found) == {"collectives", "collectives.native", "collectives.native.errors"}


def test_a_group_of_one_loads_what_it_uses() -> None:
    program = (
        "import numpy, os; os.environ = {k: v for k, v in os.environ.items() if not k.startswith('COLLECTIVES_')}\n"
        "import collectives; comm = collectives.init()\n"
        "assert comm.allreduce(numpy.ones(3))[0] == 1.0\n"
        "comm.broadcast(numpy.ones(3, numpy.int32)); comm.barrier(); comm.allreduce_async(numpy.ones(3)).wait()"
    )
    assert loaded(program) & (NEVER | RARE) == set()


def test_meeting_loads_no_more() -> None:
    program = "import numpy, collectives; collectives.init('memory://one', rank=0, size=1).barrier()"
    assert loaded(program) & (NEVER | RARE | {"email", "urllib.request"}) == set()


def test_the_version_is_that_of_the_package() -> None:
    assert collectives.__version__ == version("pycollectives")


def test_bfloat16_loads_ml_dtypes_by_its_name() -> None:
    program = (
        "import collectives; comm = collectives.init()\n"
        "x = comm.empty(4, 'bfloat16'); x[:] = 1\n"
        "assert comm.allreduce(x).dtype.name == 'bfloat16'"
    )
    assert "ml_dtypes" in loaded(program)


def test_every_public_name_is_there() -> None:
    assert len(set(collectives.__all__)) == len(collectives.__all__)
    for name in (*collectives.__all__, "__version__"):
        assert getattr(collectives, name) is getattr(collectives, name), name
        assert name in dir(collectives)
    namespace: dict[str, object] = {}
    exec("from collectives import *", namespace)
    assert set(collectives.__all__) <= set(namespace)


@pytest.mark.parametrize(
    "first", ["collectives.schedule.verification", "collectives.core.init", "collectives.algorithms"]
)
def test_public_names_mean_the_same_whatever_was_imported_before(first: str) -> None:
    program = (
        f"import {first}, collectives, inspect\n"
        "from collectives.schedule import draw, explain, verify\n"
        "assert all(map(inspect.isfunction, (collectives.init, collectives.verify, collectives.algorithm)))\n"
        "assert all(map(inspect.isfunction, (draw, explain, verify))) and verify is collectives.verify"
    )
    assert first in loaded(program)


def test_parts_of_the_library_are_attributes_once_asked_for() -> None:
    loaded(
        "import collectives; collectives.rendezvous.open_store; collectives.native.errors; collectives.schedule.Chunk"
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'allreduce'"):
        collectives.allreduce  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'allreduce'"):
        exec("from collectives import allreduce")
