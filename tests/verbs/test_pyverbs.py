"""pyverbs of Debian, which is built for another Python than the tests', tells `doctor` about the devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path("/usr/lib/python3/dist-packages")  # where Debian's package installs to


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables with which Python finds pyverbs, and nothing else of Debian's."""
    if not (PACKAGES / "pyverbs").is_dir():
        pytest.skip(f"no pyverbs in {PACKAGES}: Debian's package python3-pyverbs is not installed")
    (tmp_path / "pyverbs").symlink_to(PACKAGES / "pyverbs")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_what_it_says_of_a_device(environment: dict[str, str]) -> None:
    program = "from collectives.transports import pyverbs; print(pyverbs.describe('rxe0'))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert "queue pairs" in done.stdout and done.stdout.rstrip().endswith("on demand"), done.stdout


def test_a_device_that_it_does_not_find(environment: dict[str, str]) -> None:
    program = "from collectives.transports import pyverbs; pyverbs.describe('rxe9')"
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True, text=True)
    assert "RuntimeError: pyverbs cannot ask rxe9" in done.stderr, done.stderr


def test_its_enumerations_are_those_of_the_engine(environment: dict[str, str]) -> None:
    """The number that the engine gives for a state, and the name that pyverbs has for it."""
    program = (
        "from collectives.transports import pyverbs, verbs; all = pyverbs.enumerations(); "
        "print({port['state'] for port in verbs.ports()}, int(all.IBV_PORT_ACTIVE))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "{'active'} 4\n"


def test_doctor_shows_it(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "collectives", "doctor", "--json"]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    rdma = json.loads(done.stdout)["sections"]["rdma"]
    assert "queue pairs" in rdma["rxe0"] and "queue pairs" in rdma["rxe1"] and "pyverbs" not in rdma, rdma
