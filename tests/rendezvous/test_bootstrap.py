"""Launchers' environments: who a process is in its job, and what cannot be."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.native.errors import AuthError, TransportUnavailable
from collectives.rendezvous import secret
from collectives.rendezvous._slurm import hosts
from collectives.rendezvous.bootstrap import Launch, bootstrap
from collectives.rendezvous.memory import MemoryStore

OURS = {"COLLECTIVES_RANK": "1", "COLLECTIVES_SIZE": "4", "COLLECTIVES_STORE": "file:///s"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-17@1",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04],big1",
    "SLURM_JOB_NODELIST": "login,gpu[03-04],big1",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "COLLECTIVES_SIZE": "3", "COLLECTIVES_STORE": "redis://redis"}


def test_without_a_launcher_this_is_a_job_of_one() -> None:
    assert bootstrap(env={}) == Launch("none", 0, 1)
    assert bootstrap(env={"COLLECTIVES_RANK": "", "RANK": "", "HOME": "/"}) == Launch("none", 0, 1)


def test_our_own_variables() -> None:
    assert bootstrap(env=OURS) == Launch("collectives", 1, 4, "file:///s")
    more = {
        "COLLECTIVES_NAME": "n",
        "COLLECTIVES_TRANSPORT": "tcp",
        "COLLECTIVES_TIMEOUT": "12.5",
        "COLLECTIVES_RUN_ID": "r",
        "COLLECTIVES_LOCAL_RANK": "0",
        "COLLECTIVES_LOCAL_SIZE": "2",
    }
    assert bootstrap(env={**OURS, **more}) == Launch(
        "collectives", 1, 4, "file:///s", 0, 2, name="n", run_id="r", transport="tcp", timeout=12.5
    )


def test_torchrun() -> None:
    launch = bootstrap(env=TORCHRUN)
    assert (launch.launcher, launch.rank, launch.size) == ("torchrun", 3, 8)
    assert (launch.local_rank, launch.local_size) == (1, 2)
    assert launch.run_id is not None and "job7" in launch.run_id
    port = derived_port(launch, "node0")
    assert port != 29500
    restarted = bootstrap(env={**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert restarted.run_id != launch.run_id and derived_port(restarted, "node0") != port
    same = bootstrap(env={**TORCHRUN, "RANK": "4", "LOCAL_RANK": "0"})
    assert (same.store, same.run_id) == (launch.store, launch.run_id)
    derived_port(bootstrap(env={**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}), "127.0.0.1")
    derived_port(bootstrap(env={**TORCHRUN, "MASTER_ADDR": "fe80::1"}), "[fe80::1]")


def derived_port(launch: Launch, host: str) -> int:
    match = re.fullmatch(rf"tcp://{re.escape(host)}:(\d+)", str(launch.store))
    assert match is not None, launch.store
    assert 15000 <= int(match.group(1)) < 30000
    return int(match.group(1))


def test_open_mpi() -> None:
    assert bootstrap(env=OPENMPI) == Launch("openmpi", 2, 4, "mpi://", 0, 2, run_id="openmpi-prterun-host-17@1")
    one_host = bootstrap(env={**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    derived_port(one_host, "127.0.0.1")
    anonymous = bootstrap(env={key: value for key, value in OPENMPI.items() if key != "PMIX_NAMESPACE"})
    assert (anonymous.store, anonymous.run_id) == ("mpi://", "mpi")
    older = bootstrap(env={**OPENMPI, "PMIX_NAMESPACE": "", "OMPI_MCA_ess_base_jobid": "77"})
    assert older.run_id == "openmpi-77"


def test_mpich_and_intel_mpi() -> None:
    assert bootstrap(env=PMI) == Launch("pmi", 1, 2, "mpi://", 1, 2, run_id="mpi")
    elsewhere = bootstrap(env={**PMI, "COLLECTIVES_STORE": "redis://h"})
    assert (elsewhere.store, elsewhere.run_id) == ("redis://h", None)  # others may meet there too


def test_srun_that_sets_the_variables_of_pmi_too() -> None:
    same = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_JOBID": "1234.0"}
    one_host = {**SLURM, "SLURM_STEP_NODELIST": "big1"}
    assert bootstrap(env={**one_host, **same}) == bootstrap(env=one_host)
    assert bootstrap(env={**SLURM, **same}).store == "mpi://"  # several hosts: without a secret, if there is MPI
    assert bootstrap(env={**one_host, **same, "PMI_SIZE": "9"}).launcher == "pmi"


def test_slurm() -> None:
    launch = bootstrap(env=SLURM)
    assert (launch.launcher, launch.rank, launch.size, launch.local_rank) == ("slurm", 5, 8, 1)
    assert launch.run_id == "slurm-1234.0"
    port = derived_port(launch, "gpu03")
    assert derived_port(bootstrap(env={**SLURM, "SLURM_STEP_ID": "1"}), "gpu03") != port
    assert derived_port(bootstrap(env={**SLURM, "SLURM_STEP_NODELIST": "big1"}), "127.0.0.1") == port
    derived_port(bootstrap(env={**SLURM, "SLURM_STEP_NODELIST": ""}), "login")
    whole = bootstrap(env={**SLURM, "SLURM_STEP_NUM_TASKS": "", "SLURM_PROCID": "15"})
    assert whole.size == 16


@pytest.mark.parametrize("step", ["", "4294967291", "4294967290"], ids=["none", "batch", "interactive"])
def test_a_batch_script_is_no_task_of_a_step(step: str) -> None:
    assert bootstrap(env={**SLURM, "SLURM_STEP_ID": step, "SLURM_PROCID": "0"}).launcher == "none"


def test_kubernetes() -> None:
    assert bootstrap(env=KUBERNETES) == Launch("kubernetes", 2, 3, "redis://redis")
    with pytest.raises(ValueError, match="COLLECTIVES_SIZE is missing"):
        bootstrap(env={**KUBERNETES, "COLLECTIVES_SIZE": ""})
    assert bootstrap(size=3, env={**KUBERNETES, "COLLECTIVES_SIZE": ""}) == Launch("kubernetes", 2, 3, "redis://redis")


HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4242",
}


def test_horovodrun() -> None:
    launch = bootstrap(env=HOROVODRUN)
    assert (launch.launcher, launch.rank, launch.size, launch.local_rank) == ("horovodrun", 1, 2, 1)
    port = derived_port(launch, "127.0.0.1")
    assert derived_port(bootstrap(env={**HOROVODRUN, "HOROVOD_RANK": "0"}), "127.0.0.1") == port
    assert derived_port(bootstrap(env={**HOROVODRUN, "HOROVOD_GLOO_RENDEZVOUS_PORT": "4243"}), "127.0.0.1") != port
    assert bootstrap(env={**HOROVODRUN, **OPENMPI}).launcher == "openmpi"
    with pytest.raises(ValueError, match="set COLLECTIVES_STORE"):
        bootstrap(env={**HOROVODRUN, "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_LOCAL_RANK": "0"})


# -- launchers of which only a part is there


@pytest.mark.parametrize(
    ("env", "there", "missing"),
    [
        ({"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETION_INDEX=0", "COLLECTIVES_SIZE"),
        ({"RANK": "0"}, "RANK=0", "WORLD_SIZE"),
        ({"RANK": "7", "MASTER_ADDR": "h"}, "RANK=7", "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2", "RANK"),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "WORLD_SIZE=2, LOCAL_RANK=1", "RANK"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0", "RANK and WORLD_SIZE"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "(torchrun)", "MASTER_ADDR"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_RANK and OMPI"),
        ({"PMI_RANK": "0"}, "PMI_RANK=0", "PMI_SIZE"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE=2", "PMI_RANK"),
        ({"PMI_ID": "0"}, "PMI_ID=0", "PMI_RANK and PMI_SIZE"),  # mpiexec -pmi-port
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0", "the number of ranks"),
        ({"PALS_RANKID": "1"}, "PALS_RANKID=1", "the number of ranks"),
        ({"FLUX_TASK_RANK": "1"}, "FLUX_TASK_RANK=1", "FLUX_JOB_SIZE"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_RANK=0", "HOROVOD_SIZE"),
        ({"COLLECTIVES_LOCAL_RANK": "0"}, "COLLECTIVES_LOCAL_RANK=0", "COLLECTIVES_RANK and COLLECTIVES_SIZE"),
        ({**SLURM, "SLURM_NTASKS": "", "SLURM_STEP_NUM_TASKS": ""}, "SLURM_PROCID=5", "SLURM_NTASKS"),
        ({**SLURM, "SLURM_PROCID": ""}, "SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID"),
        ({**SLURM, "SLURM_STEP_ID": ""}, "SLURM_PROCID=5, SLURM_JOB_ID=1234", "SLURM_STEP_ID"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}, "SLURM_PROCID=3, SLURM_STEP_ID=0", "SLURM_JOB_ID"),
        ({"PMI_RANK": "0", "PMIX_RANK": "0", "RANK": "0"}, "RANK=0", "WORLD_SIZE"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_part_of_a_launchers_variables_is_no_job_of_one(env: dict[str, str], there: str, missing: str) -> None:
    with pytest.raises(ValueError, match=rf"{re.escape(there)}.*{re.escape(missing)}"):
        bootstrap(env=env)
    assert bootstrap(rank=0, size=1, env=env).size == 1  # alone, on purpose
    assert bootstrap(env={**env, "COLLECTIVES_RANK": "0", "COLLECTIVES_SIZE": "1"}).size == 1


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "n[1-2]"},  # a shell of salloc
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # a batch script
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "notebook-0"},
        {"MASTER_ADDR": "host", "MASTER_PORT": "29500"},
        {"WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        {"OMPI_MCA_btl": "tcp", "OMPI_ALLOW_RUN_AS_ROOT": "1", "PMIX_MCA_gds": "hash", "I_MPI_FABRICS": "shm"},
        {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"},
    ],
    ids=["salloc", "sbatch", "pod", "address", "one", "settings", "flux of one"],
)
def test_what_does_not_make_a_process_a_rank(env: dict[str, str]) -> None:
    assert bootstrap(env=env).size == 1


def test_an_argument_or_our_own_variable_completes_a_part() -> None:
    assert bootstrap(size=4, store="redis://h", env={"PMIX_RANK": "3"}) == Launch("pmix", 3, 4, "redis://h")
    own = {"COLLECTIVES_SIZE": "4", "COLLECTIVES_STORE": "redis://h"}
    assert bootstrap(env={"PALS_RANKID": "3", **own}) == Launch("pals", 3, 4, "redis://h")
    assert bootstrap(rank=1, store="redis://h", env={"WORLD_SIZE": "2"}) == Launch("torchrun", 1, 2, "redis://h")
    assert bootstrap(env={"RANK": "1", "WORLD_SIZE": "2", "COLLECTIVES_STORE": "redis://h"}).launcher == "torchrun"


def test_a_part_beside_a_whole_launcher_has_to_agree() -> None:
    # what batch scripts export for torch, beside what srun says
    assert bootstrap(env={**SLURM, "WORLD_SIZE": "8", "MASTER_ADDR": "gpu03"}).launcher == "slurm"
    assert bootstrap(env={**TORCHRUN, "PMIX_RANK": "0", "JOB_COMPLETION_INDEX": "0"}).launcher == "torchrun"
    assert bootstrap(env={**OPENMPI, "RANK": "2", "WORLD_SIZE": "4"}).launcher == "openmpi"  # no MASTER_ADDR
    for env, text in (
        ({**SLURM, "WORLD_SIZE": "16"}, "WORLD_SIZE=16 contradicts SLURM_STEP_NUM_TASKS=8"),
        ({**SLURM, "OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_RANK=3 contradicts SLURM_PROCID=5"),
    ):
        with pytest.raises(ValueError, match=text):
            bootstrap(env=env)


def test_the_launcher_nearest_to_the_process_counts() -> None:
    everything = {**SLURM, **PMI, **OPENMPI, **TORCHRUN}
    assert bootstrap(env=everything).launcher == "torchrun"
    assert bootstrap(env={**SLURM, **PMI, **OPENMPI}).launcher == "openmpi"
    assert bootstrap(env={**SLURM, **PMI}).launcher == "pmi"
    assert bootstrap(env={**everything, **OURS}).launcher == "collectives"


def test_arguments_win() -> None:
    for env in (OURS, TORCHRUN, SLURM, {}):
        launch = bootstrap(
            rank=0, size=2, store="tcp://h:1", name="mine", transport="shm", timeout=3, secret=b"s" * 32, env=env
        )
        assert (launch.launcher, launch.rank, launch.size, launch.store) == ("arguments", 0, 2, "tcp://h:1")
        assert (launch.name, launch.transport, launch.timeout, launch.secret) == ("mine", "shm", 3.0, b"s" * 32)
        assert (launch.local_rank, launch.local_size) == (None, None)
    store = MemoryStore("argument")
    assert bootstrap(store=store, rank=0, size=2, env=OURS).store is store
    store.close()
    assert bootstrap(rank=1, size=4, env=OURS).launcher == "collectives"  # they agree, so all else counts


def test_one_of_rank_and_size_must_fit_or_complete() -> None:
    assert bootstrap(rank=1, env=OURS).size == 4
    assert bootstrap(size=8, env=SLURM).rank == 5
    assert bootstrap(rank=2, env={"COLLECTIVES_SIZE": "3", "COLLECTIVES_STORE": "redis://h"}).size == 3
    assert bootstrap(size=3, env={"COLLECTIVES_RANK": "2", "COLLECTIVES_STORE": "redis://h"}).rank == 2
    for arguments, env, text in (
        ({"rank": 2}, OURS, "rank=2 contradicts COLLECTIVES_RANK=1"),
        ({"size": 5}, OURS, "size=5 contradicts COLLECTIVES_SIZE=4"),
        ({"rank": 0}, SLURM, "rank=0 contradicts SLURM_PROCID=5"),
        ({"size": 16}, SLURM, "size=16 contradicts SLURM_STEP_NUM_TASKS=8"),
        ({"rank": 0}, {}, "no size"),
        ({"size": 2}, {}, "no rank"),
        ({}, {"COLLECTIVES_RANK": "0"}, "no size"),
        ({}, {"COLLECTIVES_SIZE": "2"}, "no rank"),
        ({"rank": 1}, {"COLLECTIVES_RANK": "0"}, "rank=1 contradicts COLLECTIVES_RANK=0"),
        ({}, {**TORCHRUN, "COLLECTIVES_SIZE": "4"}, "COLLECTIVES_SIZE=4 contradicts WORLD_SIZE=8"),
        ({}, {**SLURM, "COLLECTIVES_RANK": "0"}, "COLLECTIVES_RANK=0 contradicts SLURM_PROCID=5"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            bootstrap(**arguments, env=env)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({**OURS, "COLLECTIVES_RANK": "x"}, "COLLECTIVES_RANK='x' is not a number"),
        ({**OURS, "COLLECTIVES_RANK": "-1"}, "COLLECTIVES_RANK='-1'"),
        ({**OURS, "COLLECTIVES_RANK": "1.0"}, "COLLECTIVES_RANK='1.0'"),
        ({**OURS, "COLLECTIVES_RANK": " 1"}, "COLLECTIVES_RANK=' 1'"),
        ({**OURS, "COLLECTIVES_RANK": "\u0661"}, "COLLECTIVES_RANK="),
        ({**OURS, "COLLECTIVES_SIZE": "9" * 50}, "COLLECTIVES_SIZE="),
        ({**OURS, "COLLECTIVES_RANK": "4"}, "COLLECTIVES_RANK=4 is not a rank of COLLECTIVES_SIZE=4"),
        ({**OURS, "COLLECTIVES_SIZE": "0", "COLLECTIVES_RANK": "0"}, "COLLECTIVES_SIZE=0"),
        ({**OURS, "COLLECTIVES_TIMEOUT": "soon"}, "COLLECTIVES_TIMEOUT='soon'"),
        ({**OURS, "COLLECTIVES_TIMEOUT": "nan"}, "COLLECTIVES_TIMEOUT='nan'"),
        ({**OURS, "COLLECTIVES_TIMEOUT": "-1"}, "COLLECTIVES_TIMEOUT='-1'"),
        ({**OURS, "COLLECTIVES_LOCAL_RANK": "2", "COLLECTIVES_LOCAL_SIZE": "2"}, "local rank 2"),
        ({**OURS, "COLLECTIVES_STORE": ""}, "set COLLECTIVES_STORE"),
        ({**TORCHRUN, "RANK": "8"}, "RANK=8 is not a rank of WORLD_SIZE=8"),
        ({**TORCHRUN, "WORLD_SIZE": "many"}, "WORLD_SIZE='many'"),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK=4"),
        ({**PMI, "PMI_RANK": "2"}, "PMI_RANK=2"),
        ({**SLURM, "SLURM_PROCID": "8"}, "SLURM_PROCID=8"),
        ({**SLURM, "SLURM_STEP_NODELIST": "a[", "SLURM_JOB_NODELIST": ""}, "no Slurm host list"),
        ({**KUBERNETES, "JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX=3"),
        ({**KUBERNETES, "COLLECTIVES_STORE": ""}, "set COLLECTIVES_STORE"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_garbage_and_contradictions(env: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        bootstrap(env=env)


def test_wrong_arguments() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"rank": 2, "size": 2}, ValueError),
        ({"rank": -1, "size": 2}, ValueError),
        ({"rank": 0, "size": 0}, ValueError),
        ({"rank": "0", "size": 1}, TypeError),
        ({"rank": 0, "size": 2}, ValueError),  # and no store
        ({"timeout": math.nan}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"secret": b"short"}, ValueError),
        ({"secret": "text"}, TypeError),
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            bootstrap(**arguments, env={})


def test_secret_files(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret.write(path, b"s" * 32)
    env = {**OURS, "COLLECTIVES_SECRET_FILE": str(path)}
    launch = bootstrap(env=env)
    assert launch.secret == b"s" * 32
    assert "ssss" not in repr(launch) and "7373" not in repr(launch)
    path.chmod(0o644)
    with pytest.raises(AuthError, match="0644"):
        bootstrap(env=env)
    assert bootstrap(secret=b"t" * 32, env=env).secret == b"t" * 32  # the file is not looked at
    path.unlink()
    with pytest.raises(AuthError, match="No such file"):
        bootstrap(env=env)


def test_mpi_tells_rank_and_size_where_no_launcher_does() -> None:
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        with pytest.raises(TransportUnavailable, match="mpi4py"):
            bootstrap(store="mpi://", env={})
    else:
        pytest.skip("mpi4py is installed; test_mpi.py covers this machine")


def test_this_processs_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in OURS.items():
        monkeypatch.setenv(key, value)
    assert bootstrap() == bootstrap(env=OURS)


# -- Slurm's host lists


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[1-2]node[3,5]", ["rack1node3", "rack1node5", "rack2node3", "rack2node5"]),
        ("a[1-2]-ib0,b.example.org", ["a1-ib0", "a2-ib0", "b.example.org"]),
        ("gpu-[001]", ["gpu-001"]),
    ],
)
def test_host_lists(text: str, expected: list[str]) -> None:
    assert list(hosts(text)) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "n[", "n]", "n[1", "n[]", "n[a-b]", "n[1-]", "a,,b", "a,", "n[1][", "a b", "n[[1]]"]
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match="Slurm host list"):
        list(hosts(text))


def test_huge_ranges_cost_nothing_until_they_are_used() -> None:
    assert next(hosts("n[000000000000-999999999999]")) == "n000000000000"


@settings(deadline=None)
@given(st.text(alphabet="n0123456789[]-,. ", max_size=30))
def test_any_text_is_a_list_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert next(hosts(text))
