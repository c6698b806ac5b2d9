"""The table from which a group chooses algorithms: the sources of its rows, and how all ranks get the same table.

Invariant: only rank 0 reads files and its environment. It publishes the rows before any call uses the table, so ranks
cannot choose differently, even if they were passed different tables.

Each row names an algorithm for a collective, under conditions such as the number of ranks and the size in bytes. With
the condition wire=auto it names a wire format. The sources of rows, in the order of priority; the first row that
matches a call decides:

    argument            init(table=...): a Table, or a file
    COLLECTIVES_ALGORITHM    for example allreduce:ring,broadcast:binomial
    COLLECTIVES_TABLE        a file
    calibrated          measured on this machine, for such a group or smaller ones; files in the cache folder
    built in            collectives.schedule.defaults

COLLECTIVES_CALIBRATE, or init(calibrate=...): "auto" (use calibrated tables; if there is none and `worth_it` says
yes, measure for at most two seconds), "cached" (use calibrated tables, never measure), "off" (do not use or measure).
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from collectives.algorithms import registry
from collectives.core import tables
from collectives.core.links import NETWORKS
from collectives.core.tables import Machine
from collectives.native._engine import why_no_room
from collectives.native.errors import ConfigMismatch
from collectives.native.spelling import hint
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.deterministic import DETERMINISTIC
from collectives.schedule.table import ANY_RANKS, ANY_SIZE, LONGEST, ON_DEVICES, Row, Situation, Table, join, parse

if TYPE_CHECKING:
    from collectives.calibration.run import Outcome
    from collectives.calls.moves import Deadline
    from collectives.core.communicator import Communicator

TableLike: TypeAlias = "Table | str | os.PathLike[str]"

MODES: Final = ("auto", "cached", "off")
MOST_RANKS: Final = 64  # of the largest group that is calibrated automatically
_MOST_OVER_VERBS: Final = 5  # the same; every link locks memory, of which there is enough for links to 4 ranks
_LONGEST: Final = 4 * LONGEST  # bytes that rank 0 may publish


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's settings for the choice of algorithms.

    `table` has precedence over all other tables. `mode` is the argument `calibrate` of `init`: "auto", "cached"
    or "off". If `deterministic` is set, `table` and `mode` are not used.
    """

    table: Table
    mode: str
    deterministic: bool = False


def wish(
    rank: int,
    table: TableLike | None,
    calibrate: str | None,
    env: Mapping[str, str] | None = None,
    deterministic: bool = False,
) -> Wish:
    """Reads the user's settings for the choice of algorithms from arguments of `init` and the environment.

    Only rank 0 reads the files of tables that choose algorithms. If `deterministic` is set, the environment is not
    read. Raises TypeError for an argument of a wrong type. Raises ValueError for an invalid table (with file and line),
    an unknown algorithm, an unknown value of `calibrate`, and arguments that contradict `deterministic`.
    """
    if not isinstance(deterministic, bool):
        raise TypeError(f"deterministic must be a bool, not {type(deterministic).__name__}")
    if deterministic:
        for name, value in (("table", table), ("calibrate", None if calibrate == "off" else calibrate)):
            if value is not None:
                raise ValueError(f"deterministic=True fixes every choice, so {name}={value!r} cannot be given as well")
        return Wish(Table(()), "off", deterministic=True)
    environment = os.environ if env is None else env
    if table is not None and not isinstance(table, Table | str | os.PathLike):
        raise TypeError(f"table must be a Table or the path of a file, not {type(table).__name__}")
    if calibrate is not None and not isinstance(calibrate, str):
        raise TypeError(f"calibrate must be a str, not {type(calibrate).__name__}")
    mode = calibrate or environment.get("COLLECTIVES_CALIBRATE") or "auto"
    if mode not in MODES:
        what = "calibrate" if calibrate else "COLLECTIVES_CALIBRATE"
        raise ValueError(f"{what}={mode!r} is none of {', '.join(MODES)}{hint(mode, MODES)}")
    return Wish(_given(table, environment), mode) if rank == 0 else Wish(Table(()), mode)


def _given(table: TableLike | None, env: Mapping[str, str]) -> Table:
    found = []
    if isinstance(table, Table):
        found.append(table.from_source("argument table="))
    elif table is not None:
        found.append(_read(table, "argument"))
    if env.get("COLLECTIVES_ALGORITHM"):
        found.append(_algorithms(env["COLLECTIVES_ALGORITHM"]))
    if env.get("COLLECTIVES_TABLE"):
        found.append(_read(env["COLLECTIVES_TABLE"], "COLLECTIVES_TABLE"))
    given = join(found)
    for row in given.rows:
        others = ON_DEVICES.get(row.memory, ())
        if row.wire or row.algorithm in others:
            continue
        try:
            registry.get(row.collective, row.algorithm)
        except ValueError as error:
            more = f"; memory={row.memory} also has {', '.join(others)}" if others else ""
            cure = "import what registers it before collectives.init()"
            raise ValueError(f"{row.source}: {error}{more}; {cure}") from None
    return given


def _read(path: str | os.PathLike[str], who: str) -> Table:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return parse(file.read(LONGEST + 1), f"{who}: {os.fspath(path)}")
    except OSError as error:
        raise ValueError(f"{who}: cannot read the table {os.fspath(path)}: {error.strerror}") from None


def _algorithms(text: str) -> Table:
    rows = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        collective, colon, name = (p.strip() for p in part.partition(":"))
        if not colon or collective not in COLLECTIVES or not name:
            what = f"{part[:80]!r} is not COLLECTIVE:ALGORITHM; collectives are {', '.join(COLLECTIVES)}"
            raise ValueError(f"COLLECTIVES_ALGORITHM: {what}")
        try:
            known = registry.get(collective, name).name
        except ValueError as error:
            raise ValueError(f"COLLECTIVES_ALGORITHM: {error}") from None
        rows.append(Row(collective, (), ANY_RANKS, ANY_SIZE, known, "asked for", source="COLLECTIVES_ALGORITHM"))
    return Table(tuple(rows))


def cached(machine: Machine, situation: Situation) -> list[Table]:
    """Returns the tables for choosing algorithms that earlier runs have measured on `machine`.

    The tables are for the group that `situation` describes, and for smaller groups, which `split` may make of it. If a
    file is damaged, warns and returns an empty list.
    """
    try:
        found = tables.load(machine, situation)
    except ValueError as error:
        warnings.warn(f"ignoring calibrated tables: {error}; delete the file", RuntimeWarning, stacklevel=2)
        return []
    known = {name: {a.name for a in registry.algorithms(name)} for name in COLLECTIVES}
    return [
        Table(tuple(row for row in t.rows if row.wire or row.algorithm in known[row.collective]), t.facts)
        for t in found
    ]


def in_force(wanted: Wish, machine: Machine, situation: Situation) -> Table:
    """Returns the table by which a group chooses algorithms if rank 0 runs on `machine`, and nothing is measured now.

    `wanted`: the user's settings. `situation`: the properties of the group.
    """
    known = [] if wanted.mode == "off" else cached(machine, situation)
    return join([wanted.table, *known, DEFAULTS])


def worth_it(situation: Situation) -> bool:
    """Whether the ranks of a new group should measure which algorithms are fastest (calibrate) before its first call.

    `situation` describes the group. Groups on several hosts should not, because the duration is not known in advance.
    Groups with more ranks than cores should not, because times would depend more on the scheduler than on algorithms.
    Groups whose ranks are threads should not, because they are tests or share a GIL. Groups of more than 64 ranks (over
    verbs, 5) should not either.
    """
    alone_here = situation.per_host == situation.size
    return (
        alone_here
        and 2 <= situation.size <= (_MOST_OVER_VERBS if situation.kind == "verbs" else MOST_RANKS)
        and situation.kind in ("shm", *NETWORKS)
        and not situation.oversubscribed
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Rank 0's plan: tables with priority over the built-in table, how long to measure, how to store the result."""

    asked: Table
    known: Sequence[Table] = ()
    seconds: float = 0.0
    keep: Callable[[Outcome], Table] | None = None  # stores the measurement, and returns it as a table
    noise: str = ""  # why nothing was stored

    @property
    def message(self) -> str:
        joined = join([self.asked, *self.known])
        rows = [[str(row), row.source] for row in joined.rows]
        message = {"rows": rows, "facts": dict(joined.facts), "seconds": self.seconds, "noise": self.noise}
        return json.dumps(message if rows or joined.facts or self.seconds or self.noise else None)


def agree(comm: Communicator, wanted: Wish, machine: Callable[[], Machine], deadline: Deadline) -> Table:
    """Returns the table by which all ranks of `comm` choose algorithms; measures algorithms now if necessary.

    All ranks call this together; the settings of rank 0 apply. `wanted`: this rank's settings. `machine` is called on
    rank 0 only, and describes its machine. Raises ConfigMismatch if the table names an algorithm that this rank does
    not have, and the errors of the communicator's calls.
    """
    if wanted.deterministic:
        return DETERMINISTIC
    with ExitStack() as reservation:
        plan = _plan(comm, wanted, machine, deadline, reservation) if comm.rank == 0 else None
        table, seconds = _publish(comm, plan, deadline)
        if seconds > 0:
            found = _measure(comm, seconds)
            if plan is not None and found.noise:
                plan = _Plan(plan.asked, plan.known, noise="; ".join(found.noise))
            elif plan is not None and plan.keep is not None:
                plan = _Plan(plan.asked, [plan.keep(found), *plan.known])
            table, _ = _publish(comm, plan, deadline)
    return table


def _plan(
    comm: Communicator, wanted: Wish, machine: Callable[[], Machine], deadline: Deadline, reservation: ExitStack
) -> _Plan:
    situation = comm._linked.situation
    if wanted.mode == "off" or situation.size == 1:
        return _Plan(wanted.table)
    here = machine()
    known = cached(here, situation)
    can_measure = worth_it(situation) and not _busy(here) and _has_room(situation)
    if wanted.mode == "auto" and can_measure and not tables.covers(known, situation):
        path = tables.path_for(here, situation)
        if path is not None and reservation.enter_context(tables.reserved(path)):
            from collectives.calibration.run import QUICK  # imported only to measure

            seconds = min(QUICK.seconds, deadline.left / 4)
            return _Plan(wanted.table, known, seconds, partial(_keep, path, here, situation))
    return _Plan(wanted.table, known)


def _has_room(situation: Situation) -> bool:
    """Whether this process may lock as much memory as the links of one more communicator need."""
    return situation.kind != "verbs" or why_no_room("verbs", situation.size) is None


def _busy(machine: Machine) -> bool:
    """Whether other programs keep this machine busy: a table measured now would be wrong once they have ended."""
    try:
        return os.getloadavg()[0] > machine.cores / 2
    except OSError:
        return False


def _measure(comm: Communicator, seconds: float) -> Outcome:
    """Calibrate on a temporary communicator, because measuring opens more links than programs need."""
    from collectives.calibration.run import QUICK, calibrate  # see `_plan`

    trial = comm._child(0, comm.rank, "calibration")
    assert trial is not None
    with trial:
        return calibrate(trial, DEFAULTS, replace(QUICK, seconds=seconds))


def _keep(path: Path, machine: Machine, situation: Situation, found: Outcome) -> Table:
    """Write the measured table to the cache file `path`; returns the table in the form that `tables.load` returns."""
    from collectives.calibration.run import QUICK  # see `_plan`

    how = f"{QUICK.name}, in {found.seconds:.1f} s, at first use"
    table = tables.described(found.table, machine, situation, how, found.facts)
    with contextlib.suppress(OSError):  # a full disk: then the next run measures again
        tables.save(path, table)
    return tables.named(table, path)


def _publish(comm: Communicator, plan: _Plan | None, deadline: Deadline) -> tuple[Table, float]:
    """Send rank 0's `plan` to all ranks; returns its table and for how many seconds to measure, the same on each."""
    if comm.size == 1:
        joined = "" if plan is None else plan.message
    else:
        joined = _from_rank_0(comm, b"" if plan is None else plan.message.encode(), deadline).decode()
    message = json.loads(joined)
    if message is None:
        return DEFAULTS, 0.0
    found: list[Row] = []
    for line, source in message["rows"]:
        (row,) = parse(line, "rank 0's table", source).rows
        if row.wire or row.algorithm in ON_DEVICES.get(row.memory, ()):
            found.append(row)
            continue
        try:
            registry.get(row.collective, row.algorithm)
        except ValueError:
            what = f"{row.source} names {row.collective} {row.algorithm}, which rank {comm.rank} does not have"
            raise ConfigMismatch(f"rank 0's table: {what}; import what registers it before init()") from None
        found.append(row)
    usual = DEFAULTS
    if message["noise"]:
        why = f"not calibrated, because {message['noise']}"
        usual = replace(usual, rows=tuple(replace(row, source=f"{row.source}; {why}") for row in usual.rows))
    return join([Table(tuple(found), message["facts"]), usual]), float(message["seconds"])


def _from_rank_0(comm: Communicator, data: bytes, deadline: Deadline) -> bytes:
    """The `data` of rank 0, broadcast to all ranks by the algorithm "binomial".

    No table exists yet from which to choose. The links that "binomial" uses are open since the group's first barrier.
    """
    length = np.array(len(data), np.int64)
    comm.broadcast(length, algorithm="binomial", timeout=deadline.left)
    if not 0 < int(length) <= _LONGEST:
        raise ConfigMismatch(f"rank 0 has a table of {int(length)} bytes, of at most {_LONGEST}")
    whole = np.empty(int(length), np.uint8)
    if comm.rank == 0:
        whole[:] = np.frombuffer(data, np.uint8)
    comm.broadcast(whole, algorithm="binomial", timeout=deadline.left)
    return whole.tobytes()
