"""Who this process is in its job, from the launcher's environment.

Invariant: an explicit argument always wins, our own variables win over other launchers', and what cannot all
be true at once is a ValueError that names the variables; nothing is guessed.

| launcher            | recognised by                                | store unless COLLECTIVES_STORE says      |
|---------------------|----------------------------------------------|------------------------------------------|
| collectives run     | COLLECTIVES_RANK, COLLECTIVES_SIZE           | must be given                            |
| torchrun            | RANK, WORLD_SIZE, MASTER_ADDR                | tcp, on MASTER_ADDR, port derived        |
| Open MPI            | OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   | tcp on loopback if one host, else mpi:// |
| MPICH, Intel MPI    | PMI_RANK, PMI_SIZE                           | mpi://                                   |
| Slurm               | SLURM_PROCID inside a step                   | tcp, on the step's first host, derived   |
| Kubernetes          | JOB_COMPLETION_INDEX, COLLECTIVES_SIZE       | must be given                            |

With mpi:// as the store and none of these, rank and size are those of MPI.COMM_WORLD.

The first that matches counts; it is the one nearest to the process where launchers are nested. A derived port is
15000 plus a hash of the job's identity below 15000: MASTER_PORT and its neighbours belong to others, and a port
of the system's ephemeral range (32768 and up) could be taken by any connection. A job whose processes are
all on one host gets 127.0.0.1, others need a secret for tcp (COLLECTIVES_SECRET_FILE).

COLLECTIVES_NAME, COLLECTIVES_TRANSPORT, COLLECTIVES_TIMEOUT, COLLECTIVES_SECRET_FILE, COLLECTIVES_RUN_ID,
COLLECTIVES_LOCAL_RANK and COLLECTIVES_LOCAL_SIZE count under every launcher. An empty variable is an unset one.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from . import mpi
from . import secret as secrets
from ._checks import check_timeout
from ._slurm import hosts
from .group import check_rank
from .store import Store

_FIRST_PORT: Final = 15000
_PORTS: Final = 15000
_SLURM_STEPS: Final = 0xFFFFFF00  # step numbers from here on stand for batch scripts and interactive shells

T = TypeVar("T")
Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's place in its job. None: nobody said."""

    launcher: str  # "collectives", "torchrun", "openmpi", "pmi", "slurm", "kubernetes", "mpi", "arguments", "none"
    rank: int
    size: int
    store: str | Store | None = None
    local_rank: int | None = None
    local_size: int | None = None
    name: str | None = None
    run_id: str | None = None
    transport: str | None = None
    timeout: float | None = None
    secret: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Found:
    """What one launcher's variables say; the names are for messages."""

    launcher: str
    rank: int
    size: int
    rank_name: str
    size_name: str
    local_rank: int | None = None
    local_size: int | None = None
    run_id: str | None = None
    store: str | None = None


def bootstrap(
    *,
    store: str | Store | None = None,
    rank: int | None = None,
    size: int | None = None,
    name: str | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    secret: bytes | None = None,
    env: Environment | None = None,
) -> Launch:
    """Combine arguments (None: not given) with `env` (None: this process's).

    `rank` and `size` both given override every launcher. One of them alone must agree with the
    environment, or complete it. With neither, and no launcher, this is a job of one process.

    Raises: ValueError for garbage, contradictions, a rank out of range, or several processes and no store;
    TypeError; AuthError for a secret file that must not be used.
    """
    environment = os.environ if env is None else env
    where = store if store is not None else _get(environment, "COLLECTIVES_STORE")
    found = _find(environment)
    if found is None and where == "mpi://":
        found = _Found("mpi", *mpi.world(), "MPI's rank", "MPI's size")
    where = where if where is not None or found is None else found.store
    if rank is not None and size is not None:
        rank, size = check_rank(rank, size)
        if found is None or (found.rank, found.size) != (rank, size):
            found = _Found("arguments", rank, size, "rank", "size")
    elif found is None:
        own_rank, own_size = _integer(environment, "COLLECTIVES_RANK"), _integer(environment, "COLLECTIVES_SIZE")
        found = _complete(rank, size, own_rank, own_size)
        if found.launcher == "none" and where is not None and _get(environment, "JOB_COMPLETION_INDEX") is not None:
            raise ValueError("JOB_COMPLETION_INDEX is set, but COLLECTIVES_SIZE does not say how many Pods meet")
    else:
        for what, value, told, variable in (
            ("rank", rank, found.rank, found.rank_name),
            ("size", size, found.size, found.size_name),
        ):
            if value is not None and value != told:
                raise ValueError(f"{what}={value!r} contradicts {variable}={told}; give both rank and size, or neither")
    if not 0 <= found.rank < found.size:
        raise ValueError(f"{found.rank_name}={found.rank} is not a rank of {found.size_name}={found.size}")
    local_rank, local_size = found.local_rank, found.local_size
    if found.launcher != "arguments":  # which number the ranks differently than whoever set these
        local_rank = _first(_integer(environment, "COLLECTIVES_LOCAL_RANK"), local_rank)
        local_size = _first(_integer(environment, "COLLECTIVES_LOCAL_SIZE"), local_size)
    if local_rank is not None and local_size is not None and local_rank >= local_size:
        raise ValueError(f"local rank {local_rank} is not one of {local_size} on this host")
    launch = Launch(
        launcher=found.launcher,
        rank=found.rank,
        size=found.size,
        store=where,
        local_rank=local_rank,
        local_size=local_size,
        name=_first(name, _get(environment, "COLLECTIVES_NAME")),
        # a store that MPI makes for this job alone needs no other mark to keep jobs apart
        run_id=_first(_get(environment, "COLLECTIVES_RUN_ID"), found.run_id, "mpi" if where == "mpi://" else None),
        transport=_first(transport, _get(environment, "COLLECTIVES_TRANSPORT")),
        timeout=_timeout(environment) if timeout is None else check_timeout(timeout),
        secret=None if secret is None else secrets.check(secret),
    )
    if launch.store is None and launch.size > 1:
        raise ValueError(
            f"rank {launch.rank} of {launch.size} ({launch.launcher}) does not know where to meet the others: "
            "pass store= or set COLLECTIVES_STORE, for example to file:///shared/dir, redis://host or tcp://host:port"
        )
    path = _get(environment, "COLLECTIVES_SECRET_FILE")
    return replace(launch, secret=secrets.read(path)) if secret is None and path is not None else launch


def _complete(rank: int | None, size: int | None, own_rank: int | None, own_size: int | None) -> _Found:
    """What an argument and one of our own variables say together; a job of one process if there is nothing."""
    for what, value, own in (("rank", rank, own_rank), ("size", size, own_size)):
        if value is not None and own not in (None, value):
            raise ValueError(f"{what}={value!r} contradicts COLLECTIVES_{what.upper()}={own}")
    both = _first(rank, own_rank), _first(size, own_size)
    match both:
        case None, None:
            return _Found("none", 0, 1, "rank", "size")
        case None, _:
            raise ValueError("a size is given (size=, COLLECTIVES_SIZE), but no rank (rank=, COLLECTIVES_RANK)")
        case _, None:
            raise ValueError("a rank is given (rank=, COLLECTIVES_RANK), but no size (size=, COLLECTIVES_SIZE)")
        case number, total:
            return _Found("collectives", *check_rank(number, total), "rank", "size")


def _find(env: Environment) -> _Found | None:
    for look in (_collectives, _torchrun, _openmpi, _pmi, _slurm, _kubernetes):
        found = look(env)
        if found is not None:
            for own, told, other in (
                ("COLLECTIVES_RANK", found.rank, found.rank_name),
                ("COLLECTIVES_SIZE", found.size, found.size_name),
            ):
                if _integer(env, own) not in (None, told):
                    raise ValueError(f"{own}={env[own]} contradicts {other}={told}")
            return found
    return None


def _collectives(env: Environment) -> _Found | None:
    rank, size = _integer(env, "COLLECTIVES_RANK"), _integer(env, "COLLECTIVES_SIZE")
    if rank is None or size is None:
        return None  # an argument, or Kubernetes, may tell the other
    return _Found("collectives", rank, size, "COLLECTIVES_RANK", "COLLECTIVES_SIZE")


def _torchrun(env: Environment) -> _Found | None:
    address = _get(env, "MASTER_ADDR")
    both = _pair(env, "RANK", "WORLD_SIZE") if address is not None else None
    if both is None or address is None:
        return None
    local_size = _integer(env, "LOCAL_WORLD_SIZE")
    parts = [_get(env, key) for key in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")]
    identity = "-".join(part or "" for part in parts)
    # torchrun calls a job that got no id "none"; address and port still tell it from others at one time
    run_id = f"torchrun-{address}-{identity}" if _get(env, "TORCHELASTIC_RUN_ID") else None
    host = "127.0.0.1" if local_size == both[1] else address
    return _Found(
        "torchrun",
        *both,
        "RANK",
        "WORLD_SIZE",
        local_rank=_integer(env, "LOCAL_RANK"),
        local_size=local_size,
        run_id=run_id,
        store=_tcp(host, f"torchrun-{identity}"),
    )


def _openmpi(env: Environment) -> _Found | None:
    both = _pair(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if both is None:
        return None
    local_size = _integer(env, "OMPI_COMM_WORLD_LOCAL_SIZE")
    job = _get(env, "PMIX_NAMESPACE") or _get(env, "OMPI_MCA_ess_base_jobid") or _get(env, "OMPI_MCA_orte_ess_jobid")
    run_id = f"openmpi-{job}" if job else None
    return _Found(
        "openmpi",
        *both,
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        local_rank=_integer(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=local_size,
        run_id=run_id,
        store=_tcp("127.0.0.1", run_id) if run_id and local_size == both[1] else "mpi://",
    )


def _pmi(env: Environment) -> _Found | None:
    both = _pair(env, "PMI_RANK", "PMI_SIZE")
    if both is None:
        return None
    # no run id: under Slurm, processes that mpiexec itself forked would not see the step that others run in
    return _Found(
        "pmi",
        *both,
        "PMI_RANK",
        "PMI_SIZE",
        local_rank=_integer(env, "MPI_LOCALRANKID"),
        local_size=_integer(env, "MPI_LOCALNRANKS"),
        store="mpi://",
    )


def _slurm(env: Environment) -> _Found | None:
    step = _slurm_step(env)
    size_name = "SLURM_STEP_NUM_TASKS" if _get(env, "SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    both = _pair(env, "SLURM_PROCID", size_name) if step else None
    if both is None or step is None:
        return None
    store = None
    for variable in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        nodelist = _get(env, variable)
        if nodelist is not None:
            nodes = hosts(nodelist)
            first = next(nodes)
            store = _tcp(first if next(nodes, None) is not None else "127.0.0.1", step)
            break
    return _Found(
        "slurm",
        *both,
        "SLURM_PROCID",
        size_name,
        local_rank=_integer(env, "SLURM_LOCALID"),
        run_id=step,
        store=store,
    )


def _slurm_step(env: Environment) -> str | None:
    """Names the job step this process is a task of; None in a batch script, which also sees SLURM_PROCID."""
    job = _get(env, "SLURM_JOB_ID") or _get(env, "SLURM_JOBID")
    step = _integer(env, "SLURM_STEP_ID")
    step = _integer(env, "SLURM_STEPID") if step is None else step
    return f"slurm-{job}.{step}" if job and step is not None and step < _SLURM_STEPS else None


def _kubernetes(env: Environment) -> _Found | None:
    rank, size = _integer(env, "JOB_COMPLETION_INDEX"), _integer(env, "COLLECTIVES_SIZE")
    if rank is None or size is None:
        return None
    return _Found("kubernetes", rank, size, "JOB_COMPLETION_INDEX", "COLLECTIVES_SIZE")


def _tcp(host: str, identity: str) -> str:
    port = _FIRST_PORT + zlib.crc32(identity.encode()) % _PORTS
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"


def _pair(env: Environment, rank_name: str, size_name: str) -> tuple[int, int] | None:
    rank, size = _integer(env, rank_name), _integer(env, size_name)
    if rank is None or size is None:
        return None
    return rank, size


def _get(env: Environment, key: str) -> str | None:
    return env.get(key) or None


def _integer(env: Environment, key: str) -> int | None:
    text = _get(env, key)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ValueError(f"{key}={text[:80]!r} is not a number, zero or more")
    return int(text)


def _timeout(env: Environment) -> float | None:
    text = _get(env, "COLLECTIVES_TIMEOUT")
    if text is None:
        return None
    try:
        return check_timeout(float(text), "COLLECTIVES_TIMEOUT")
    except ValueError:
        raise ValueError(f"COLLECTIVES_TIMEOUT={text[:80]!r} is not a finite number of seconds, zero or more") from None


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)
