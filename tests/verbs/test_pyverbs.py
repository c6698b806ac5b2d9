"""pyverbs tells `doctor` about the devices: that of Debian, and one of PyPI.

The latter is in the folder PYVERBS, which vm/pyverbs.sh has made. Its tests are skipped if there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path("/usr/lib/python3/dist-packages")  # where Debian's package installs to


def of_debian(folder: Path) -> dict[str, str]:
    """Variables with which Python finds Debian's pyverbs, and nothing else of Debian's."""
    if not (PACKAGES / "pyverbs").is_dir():
        pytest.skip(f"no pyverbs in {PACKAGES}: Debian's package python3-pyverbs is not installed")
    (folder / "pyverbs").symlink_to(PACKAGES / "pyverbs")
    return {**os.environ, "PYTHONPATH": str(folder)}


def of_pypi() -> dict[str, str]:
    """Variables with which Python finds the pyverbs in the folder PYVERBS, with this machine's libibverbs."""
    folder = os.environ.get("PYVERBS")
    if folder is None:
        pytest.skip("no pyverbs of PyPI: PYVERBS is not set to a folder that tests/verbs/vm/pyverbs.sh has made")
    return {**os.environ, "PYTHONPATH": f"{folder}/site"}


@pytest.fixture(params=["debian", "pypi"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Variables with which Python finds pyverbs and the libibverbs of the same release. The engine loads the latter."""
    if request.param == "debian":
        return of_debian(tmp_path)
    found = of_pypi()
    folder = os.environ["PYVERBS"]
    return {**found, "LD_LIBRARY_PATH": f"{folder}/lib", "IBV_DRIVERS": f"{folder}/lib/librxe"}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, check=False, capture_output=True, text=True)


def test_what_it_says_of_a_device(environment: dict[str, str]) -> None:
    done = run(environment, "-c", "from collectives.transports import pyverbs; print(pyverbs.describe('rxe0'))")
    assert "queue pairs" in done.stdout and done.stdout.rstrip().endswith("on demand"), done


def test_a_device_that_it_does_not_find(environment: dict[str, str]) -> None:
    done = run(environment, "-c", "from collectives.transports import pyverbs; pyverbs.describe('rxe9')")
    assert "RuntimeError: pyverbs cannot ask rxe9" in done.stderr, done


def test_its_enumerations_are_those_of_the_engine(environment: dict[str, str]) -> None:
    """The number that the engine gives for a state, and the name that pyverbs has for it."""
    program = (
        "from collectives.transports import pyverbs, verbs; all = pyverbs.enumerations(); "
        "print({port['state'] for port in verbs.ports()}, int(all.IBV_PORT_ACTIVE))"
    )
    done = run(environment, "-c", program)
    assert done.stdout == "{'active'} 4\n", done


def test_doctor_shows_it(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "collectives", "doctor", "--json")
    rdma = json.loads(done.stdout)["sections"]["rdma"]
    assert "queue pairs" in rdma["rxe0"] and "queue pairs" in rdma["rxe1"] and "pyverbs" not in rdma, rdma


def test_doctor_says_if_it_is_of_another_release_than_libibverbs() -> None:
    done = run(of_pypi(), "-m", "collectives", "doctor", "--json")
    rdma = json.loads(done.stdout)["sections"]["rdma"]
    assert rdma["pyverbs"].startswith("cannot be used, and is not needed: pyverbs "), rdma
    assert "python3-pyverbs" in rdma["pyverbs"] and rdma["rxe0 port 1"].startswith("active"), rdma
