"""The benchmark beside programs that are not ours: perftest, and Open MPI over UCX where that is installed."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import which

import pytest

from collectives.bench.peers.environment import NUMPY, cache_folder
from collectives.bench.peers.openmpi import ENVIRONMENT, REQUIREMENTS
from tests.bench.running import bench

pytestmark = pytest.mark.timeout(300)

ARGUMENTS = ("-n", "2", "-b", "8", "-e", "64K", "-f", "8192", "--transport", "verbs", "-w", "1", "--iters", "10")


def test_perftest(tmp_path: Path) -> None:
    if which("ib_write_lat") is None:
        pytest.skip("perftest is not installed")
    done = bench(*ARGUMENTS, "--rounds", "2", "--peers", "perftest", "--json", "both.json", folder=tmp_path)
    results = json.loads((tmp_path / "both.json").read_text())["results"]
    assert [result["bytes"] for result in results] == [8, 64 << 10]
    times = [result["measurements"]["perftest"]["seconds"]["median"] for result in results]
    assert 0 < times[0] < times[1] < 1, done.stdout


def test_open_mpi_over_ucx(tmp_path: Path) -> None:
    complete = next(cache_folder().glob(f"{ENVIRONMENT}-py*/.complete"), None)
    if complete is None or complete.read_text().split() != [*REQUIREMENTS, NUMPY]:
        pytest.skip("Open MPI is not installed: `collectives bench --peers openmpi` installs it")
    done = bench(*ARGUMENTS, "--rounds", "1", "--peers", "openmpi-ucx", "--json", "both.json", folder=tmp_path)
    results = json.loads((tmp_path / "both.json").read_text())["results"]
    assert all(result["measurements"]["openmpi-ucx"]["wrong"] == 0 for result in results), done.stdout
