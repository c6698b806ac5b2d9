"""The rank, size and store of this process, from arguments or the launcher's environment.

Invariant: explicit arguments have priority over variables. Variables of this library (COLLECTIVES_...) have priority
over those of other launchers. Contradictions raise a ValueError that names the variables. Nothing is guessed.

| launcher            | recognised by                                | store unless COLLECTIVES_STORE is set    |
|---------------------|----------------------------------------------|------------------------------------------|
| collectives run     | COLLECTIVES_RANK, COLLECTIVES_SIZE           | must be given                            |
| torchrun            | RANK, WORLD_SIZE, MASTER_ADDR                | tcp on MASTER_ADDR, derived port         |
| Open MPI            | OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   | tcp on loopback if one host, else mpi:// |
| MPICH, Intel MPI    | PMI_RANK, PMI_SIZE                           | mpi://                                   |
| Slurm               | SLURM_PROCID inside a job step               | tcp on step's first host, derived port   |
| horovodrun          | HOROVOD_RANK, HOROVOD_SIZE                   | tcp on loopback if one host              |
| Kubernetes          | JOB_COMPLETION_INDEX, COLLECTIVES_SIZE       | must be given                            |
| Flux, MVAPICH, jsrun| ..._RANK and ..._SIZE (see `launchers`)      | must be given                            |

The first launcher in this order whose variables are all set counts. If launchers are nested, this is usually the one
that started the process itself. With mpi:// as the store and no launcher, rank and size are those of MPI.COMM_WORLD.
If a launcher has set only a rank or only a size, or sets no size at all (PMIx, PALS, ALPS), an argument or a variable
of this library must supply the missing value. Otherwise `bootstrap` raises ValueError, because the process would run as
a job of its own.

A derived port is 15000 plus a hash of the job's id, and below 30000. MASTER_PORT and the ports next to it are not used,
because torchrun and frameworks use them. Ports of the system's ephemeral range (32768 and up) are not used either,
because any connection could have them. A job on a single host uses the address 127.0.0.1. Other jobs need a secret for
a tcp store (COLLECTIVES_SECRET_FILE).

COLLECTIVES_NAME, COLLECTIVES_TRANSPORT, COLLECTIVES_TIMEOUT, COLLECTIVES_SECRET_FILE, COLLECTIVES_RUN_ID,
COLLECTIVES_LOCAL_RANK and COLLECTIVES_LOCAL_SIZE are read under every launcher. An empty variable counts as unset.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from . import mpi
from . import secret as secrets
from ._checks import check_timeout
from ._environment import Environment
from ._environment import get as _get
from ._environment import integer as _integer
from ._environment import seconds as _seconds
from .group import check_rank
from .launchers import Found, Incomplete, find
from .store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Launch:
    """The rank of this process, the size of its job, and other settings that arguments or environment variables give.

    A field is None if nothing gives its value. `launcher` is the name of a launcher in the module `launchers`. It is
    "mpi" if rank and size come from MPI.COMM_WORLD, "arguments" if they are arguments, and "none" if nothing gives
    them. `variables` is a text for error messages: the variables or arguments that give rank and size, with their
    values.
    """

    launcher: str
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
    variables: str = field(default="", compare=False, repr=False)


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
    """Determine the rank of this process, the size of its job and the other settings of `Launch`.

    Environment variables in `env` replace arguments that are None. If `env` is None, `os.environ` is used.

    If both `rank` and `size` are given, the launcher's variables are ignored. If only one of the two is given, it must
    agree with the variables, or supply a value that the variables lack. If neither is given and no launcher is found,
    the job is this process alone.

    Raises: ValueError for invalid values, contradictions, an incomplete set of a launcher's variables, or a rank out of
    range. ValueError also for a job of several processes without a store. TypeError for wrong types. AuthError for a
    secret file that `secret.read` refuses.
    """
    environment = os.environ if env is None else env
    where = store if store is not None else _get(environment, "COLLECTIVES_STORE")
    found, partly = find(environment)
    if found is None and where == "mpi://":
        found = Found("mpi", *mpi.world(), "MPI's rank", "MPI's size")
    where = where if where is not None or found is None else found.store
    if rank is not None and size is not None:
        rank, size = check_rank(rank, size)
        if found is None or (found.rank, found.size) != (rank, size):
            found = Found("arguments", rank, size, "rank", "size")
    elif found is None:
        found = _complete(rank, size, environment, partly)
    else:
        for what, value, variables, variable in (
            ("rank", rank, found.rank, found.rank_name),
            ("size", size, found.size, found.size_name),
        ):
            if value is not None and value != variables:
                raise ValueError(
                    f"{what}={value!r} contradicts {variable}={variables}; give both rank and size, or neither"
                )
        _agree(found, environment, partly)
    if not 0 <= found.rank < found.size:
        raise ValueError(f"{found.rank_name}={found.rank} is not a rank of {found.size_name}={found.size}")
    local_rank, local_size = found.local_rank, found.local_size
    if found.launcher != "arguments":  # with arguments, ranks are numbered differently from the launcher's
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
        # MPI makes a store for this job alone, so any run id keeps jobs apart
        run_id=_first(_get(environment, "COLLECTIVES_RUN_ID"), found.run_id, "mpi" if where == "mpi://" else None),
        transport=_first(transport, _get(environment, "COLLECTIVES_TRANSPORT")),
        timeout=_seconds(environment, "COLLECTIVES_TIMEOUT") if timeout is None else check_timeout(timeout),
        secret=None if secret is None else secrets.check(secret),
        variables=str(found),
    )
    if launch.store is None and launch.size > 1:
        lacking = "MASTER_ADDR is not set; " if launch.launcher == "torchrun" else ""
        raise ValueError(
            f"rank {launch.rank} of {launch.size} ({launch.launcher}) does not know where to meet the others: "
            f"{lacking}pass store= or set COLLECTIVES_STORE, for example to file:///shared/dir, redis://host or tcp://host:port"
        )
    path = _get(environment, "COLLECTIVES_SECRET_FILE")
    return replace(launch, secret=secrets.read(path)) if secret is None and path is not None else launch


def _agree(found: Found, env: Environment, partly: Sequence[Incomplete]) -> None:
    """Raise ValueError if the launcher `found` contradicts variables of this library or of launchers in `partly`.

    `partly`: the launchers that were tried before `found` and have set only some of their variables.
    """
    others = [(name, _integer(env, f"COLLECTIVES_{name}")) for name in ("RANK", "SIZE")]
    stated = [(f"COLLECTIVES_{name}", value, name == "RANK") for name, value in others]
    for part in partly:
        stated += [(part.rank_name, part.rank, True), (part.size_name, part.size, False)]
    for name, value, is_rank in stated:
        variables, other = (found.rank, found.rank_name) if is_rank else (found.size, found.size_name)
        if value not in (None, variables):
            raise ValueError(f"{name}={value} contradicts {other}={variables}; to decide, give rank= and size= to init")


def _complete(rank: int | None, size: int | None, env: Environment, partly: Sequence[Incomplete]) -> Found:
    """Rank and size, from arguments, variables of this library and launchers that set only some of their variables.

    If none of these is set, the job is this process alone. Otherwise, ValueError if rank or size is missing.
    """
    own_rank, own_size = _integer(env, "COLLECTIVES_RANK"), _integer(env, "COLLECTIVES_SIZE")
    for what, value, own in (("rank", rank, own_rank), ("size", size, own_size)):
        if value is not None and own not in (None, value):
            raise ValueError(f"{what}={value!r} contradicts COLLECTIVES_{what.upper()}={own}")
    rank, size = _first(rank, own_rank), _first(size, own_size)
    if rank is not None and size is not None:
        return Found("collectives", *check_rank(rank, size), "rank", "size")
    for part in partly:
        number, total = _first(rank, part.rank), _first(size, part.size)
        if number is not None and total is not None:
            names = part.rank_name if rank is None else "rank", part.size_name if size is None else "size"
            return Found(part.launcher, *check_rank(number, total), *names)
    if rank is None and size is None:
        if partly:
            raise ValueError(str(partly[0]))
        return Found("none", 0, 1, "rank", "size")
    if rank is None:
        raise ValueError("a size is given (size=, COLLECTIVES_SIZE), but no rank (rank=, COLLECTIVES_RANK)")
    raise ValueError("a rank is given (rank=, COLLECTIVES_RANK), but no size (size=, COLLECTIVES_SIZE)")


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)
