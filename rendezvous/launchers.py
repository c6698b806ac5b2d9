"""Derives rank, size and store of a process from the environment variables that a launcher has set.

Invariant: a launcher's variables are complete, or absent, or reported as incomplete; a process that was started as one
rank of several never counts as a job of its own. A process counts as a rank only if it has variables that launchers set
for ranks and for no other process. So login shells inside an allocation (SLURM_JOB_ID, SLURM_NTASKS), batch scripts,
notebooks in a Pod (KUBERNETES_SERVICE_HOST) and processes with an exported MASTER_ADDR do not count as ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from . import _slurm
from ._environment import Environment, get, integer

_Launcher: TypeAlias = "tuple[Callable[[Environment], Found | None], Callable[[Environment], Incomplete | None]]"

_FIRST_PORT: Final = 15000
_PORTS: Final = 15000


@dataclass(frozen=True, slots=True)
class Found:
    """The rank, the size and the other values that one launcher has set in environment variables.

    `launcher` is the launcher's short name, `title` its name for messages. `rank_name` and `size_name` are the names of
    the variables that have rank and size. `store` is the URL of a key-value store, derived from the variables; None if
    they give no URL.
    """

    launcher: str
    rank: int
    size: int
    rank_name: str
    size_name: str
    local_rank: int | None = None
    local_size: int | None = None
    run_id: str | None = None
    store: str | None = None
    title: str = ""

    def __str__(self) -> str:
        return f"{self.title or self.launcher}: {self.rank_name}={self.rank} and {self.size_name}={self.size}"


@dataclass(frozen=True, slots=True)
class Incomplete:
    """An incomplete set of environment variables, from a launcher that started this process as a rank.

    `rank` and `size` are None if not set. `present` maps the names of the variables that are set to their values.
    `missing` is text for an error message: the names of the variables that are not set.
    """

    launcher: str
    title: str
    rank: int | None
    size: int | None
    rank_name: str
    size_name: str
    present: Mapping[str, str]
    missing: str

    def __str__(self) -> str:
        there = ", ".join(f"{name}={value[:80]}" for name, value in self.present.items())
        return (
            f"{there}: {self.title} started this process as a rank, but {self.missing} is missing, so it does not know "
            "its place. Set what is missing, or COLLECTIVES_RANK, COLLECTIVES_SIZE and COLLECTIVES_STORE (in an MPI "
            "job COLLECTIVES_STORE=mpi:// alone). To run alone on purpose: init(rank=0, size=1), or COLLECTIVES_RANK=0 "
            "and COLLECTIVES_SIZE=1"
        )


@dataclass(frozen=True, slots=True)
class _Signs:
    """The names of the variables that a launcher sets for ranks only.

    `size` is empty if the launcher sets no variable with the number of ranks. `others`: more variables that only ranks
    have, but that tell neither rank nor size.
    """

    launcher: str
    title: str
    rank: str
    size: str = ""
    local_rank: str = ""
    local_size: str = ""
    others: tuple[str, ...] = ()

    def found(self, env: Environment, run_id: str | None = None, store: str | None = None) -> Found | None:
        rank, size = integer(env, self.rank), integer(env, self.size)
        if rank is None or size is None:
            return None
        local = integer(env, self.local_rank), integer(env, self.local_size)
        return Found(self.launcher, rank, size, self.rank, self.size, *local, run_id, store, self.title)

    def incomplete(self, env: Environment) -> Incomplete | None:
        """Return the launcher's variables in `env` with their values, if the launcher has set some, but not all.

        Return None if the launcher has set no variable, if it has set rank and size, or if size is 1.
        """
        names = (self.rank, self.size, self.local_rank, *self.others)
        present = {name: env[name] for name in names if get(env, name) is not None}
        rank, size = integer(env, self.rank), integer(env, self.size)
        if not present or size == 1 or (rank is not None and size is not None):
            return None
        lacking = [name for name, value in ((self.rank, rank), (self.size, size)) if name and value is None]
        missing = " and ".join(lacking) or "the number of ranks"
        return Incomplete(self.launcher, self.title, rank, size, self.rank, self.size, present, missing)


_COLLECTIVES: Final = _Signs(
    "collectives",
    "collectives run",
    "COLLECTIVES_RANK",
    "COLLECTIVES_SIZE",
    "COLLECTIVES_LOCAL_RANK",
    "COLLECTIVES_LOCAL_SIZE",
)
_TORCHRUN: Final = _Signs(
    "torchrun", "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)
)
_OPENMPI: Final = _Signs(
    "openmpi",
    "Open MPI",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    ("OMPI_COMM_WORLD_NODE_RANK",),
)
_PMI: Final = _Signs(
    "pmi", "MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_ID", "PMI_FD")
)
_HOROVODRUN: Final = _Signs(
    "horovodrun", "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
)
_KUBERNETES: Final = _Signs("kubernetes", "a Kubernetes indexed Job", "JOB_COMPLETION_INDEX", "COLLECTIVES_SIZE")
# Launchers whose variables do not suffice to derive a store.
_OTHERS: Final = (
    _Signs("flux", "Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    _Signs("mvapich", "MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    _Signs("jsrun", "jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    _Signs("pals", "HPE PALS", "PALS_RANKID"),
    _Signs("alps", "Cray ALPS", "ALPS_APP_PE"),
    _Signs("pmix", "PMIx", "PMIX_RANK"),  # must be the last: most launchers above set it, too
)


def find(env: Environment) -> tuple[Found | None, list[Incomplete]]:
    """Find the launcher that started this process, by the environment variables in `env`.

    Return a pair. Its first item has the values of the first launcher whose variables are all set, or is None. Its
    second item lists the launchers that were tried before and have set only a part of their variables. Raises:
    ValueError for a variable that should be a number and is not.
    """
    partly: list[Incomplete] = []
    for look, part in _LAUNCHERS:
        found = look(env)
        if found is not None:
            return found, partly
        incomplete = part(env)
        if incomplete is not None:
            partly.append(incomplete)
    return None, partly


def _torchrun(env: Environment) -> Found | None:
    address, local_size = get(env, "MASTER_ADDR"), integer(env, "LOCAL_WORLD_SIZE")
    if address is None:
        return None
    parts = [get(env, key) for key in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")]
    identity = "-".join(part or "" for part in parts)
    # torchrun uses the id "none" if the user gives none; address and port still distinguish concurrent jobs
    run_id = f"torchrun-{address}-{identity}" if get(env, "TORCHELASTIC_RUN_ID") else None
    host = "127.0.0.1" if local_size is not None and local_size == integer(env, "WORLD_SIZE") else address
    return _TORCHRUN.found(env, run_id, _tcp(host, f"torchrun-{identity}"))


def _openmpi(env: Environment) -> Found | None:
    job = get(env, "PMIX_NAMESPACE") or get(env, "OMPI_MCA_ess_base_jobid") or get(env, "OMPI_MCA_orte_ess_jobid")
    run_id = f"openmpi-{job}" if job else None
    local_size = integer(env, _OPENMPI.local_size)
    here = run_id is not None and local_size is not None and local_size == integer(env, _OPENMPI.size)
    return _OPENMPI.found(env, run_id, _tcp("127.0.0.1", run_id) if run_id is not None and here else "mpi://")


def _pmi(env: Environment) -> Found | None:
    # No run id: under Slurm, ranks that mpiexec forks on its own host would not have the variables of the job step.
    found, task = _PMI.found(env, store="mpi://"), _slurm_task(env)
    if found is None or task is None or (found.rank, found.size) != (task.rank, task.size):
        return found
    # srun has set the variables of PMI and of Slurm. On one host, ranks then meet without MPI and without a secret.
    return task if (task.store or "").startswith("tcp://127.0.0.1:") else found


def _slurm_task(env: Environment) -> Found | None:
    step = _slurm.step(env)
    signs = _slurm_signs(env)
    return None if step is None else signs.found(env, step, _slurm_store(env, step))


def _slurm_signs(env: Environment) -> _Signs:
    size = "SLURM_STEP_NUM_TASKS" if get(env, "SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    return _Signs("slurm", "Slurm", "SLURM_PROCID", size, "SLURM_LOCALID")


def _slurm_store(env: Environment, step: str) -> str | None:
    for variable in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        nodelist = get(env, variable)
        if nodelist is not None:
            nodes = _slurm.hosts(nodelist)
            first = next(nodes)
            return _tcp(first if next(nodes, None) is not None else "127.0.0.1", step)
    return None


def _slurm_part(env: Environment) -> Incomplete | None:
    """The variables of a Slurm task, if the job step, the task's number or the number of tasks is missing; else None.

    Also None in a batch script or interactive shell: Slurm sets SLURM_PROCID=0 there, but these are no tasks of a job.
    """
    rank = integer(env, "SLURM_PROCID")
    if _slurm.step(env) is not None:
        return _slurm_signs(env).incomplete(env)
    if not rank or _slurm.no_task(env):
        return None
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    present = {name: env[name] for name in ("SLURM_PROCID", *names) if get(env, name) is not None}
    missing = " and ".join(name for name in names if name not in present)
    return Incomplete("slurm", "Slurm", rank, None, "SLURM_PROCID", "SLURM_NTASKS", present, missing)


def _horovodrun(env: Environment) -> Found | None:
    job = "-".join(get(env, f"HOROVOD_GLOO_RENDEZVOUS_{part}") or "" for part in ("ADDR", "PORT"))
    here = get(env, "HOROVOD_LOCAL_SIZE") == get(env, "HOROVOD_SIZE")
    return _HOROVODRUN.found(env, store=_tcp("127.0.0.1", f"horovodrun-{job}") if here else None)


# If launchers are nested, the one that starts the process itself counts, so typical inner launchers come first.
_LAUNCHERS: Final[tuple[_Launcher, ...]] = (
    (_COLLECTIVES.found, _COLLECTIVES.incomplete),
    (_torchrun, _TORCHRUN.incomplete),
    (_openmpi, _OPENMPI.incomplete),
    (_pmi, _PMI.incomplete),
    (_slurm_task, _slurm_part),
    (_horovodrun, _HOROVODRUN.incomplete),
    (_KUBERNETES.found, _KUBERNETES.incomplete),
    (_TORCHRUN.found, lambda env: None),  # RANK and WORLD_SIZE without MASTER_ADDR: other launchers may set them, too
    *((signs.found, signs.incomplete) for signs in _OTHERS),
)


def _tcp(host: str, identity: str) -> str:
    port = _FIRST_PORT + zlib.crc32(identity.encode()) % _PORTS
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
