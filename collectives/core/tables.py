"""Tables of the algorithms that were measured as fastest: cached files, one per machine and shape of a group.

The shape of a group: the kind of its links, its number of ranks, the most ranks on a host, and whether a host has more
ranks than cores ("crowded").

Invariant: a file is written in one atomic step, and is used only for the machine and the library version with which it
was measured. If the cache folder cannot be written, the library works without a cache.

Path: pycollectives/tables/MACHINE/KIND-RANKSxPER_HOST[-crowded].table in XDG_CACHE_HOME, by default ~/.cache. MACHINE
is a hash of facts that the file contains: processor, kernel, cores, version. In the same folder, KIND.costs has the
costs with which the simulator computes times for ranks on one host over links of that kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectives.native import _engine
from collectives.schedule.table import LONGEST, Situation, Table, parse, text
from collectives.simulation.cost import Costs
from collectives.transports.host import HostIdentity, group_cores, processor

_STALE: Final = 60.0  # seconds after which the process that made a reservation is taken to have ended


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a machine and its software on which measured times depend.

    `cores`: how many cores the ranks on this host may use together. `version`: the version of this library.
    """

    processor: str
    kernel: str
    cores: int
    version: str

    @staticmethod
    def here(cores: int, version: str) -> Machine:
        features = " ".join(_engine.cpu_features())
        name = " ".join(f"{processor()} {features}".replace("#", " ").split())
        return Machine(name, f"{platform.system()} {platform.release()}", cores, version)

    @staticmethod
    def of(everyone: Sequence[HostIdentity], version: str) -> Machine:
        """Describes the machine on which rank 0 runs; only rank 0 may call this.

        `everyone`: the hosts of all ranks, by rank. `version`: the version of this library.
        """
        return Machine.here(group_cores(everyone[0], everyone), version)

    @property
    def facts(self) -> dict[str, str]:
        return {
            "processor": self.processor,
            "kernel": self.kernel,
            "cores": str(self.cores),
            "version": self.version,
        }


def folder(machine: Machine) -> Path | None:
    """Returns the directory for algorithm tables that were measured on `machine`; it may not exist yet.

    Returns None if the user has no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        top = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # no HOME, and no entry for this user either
        return None
    key = hashlib.sha256("\n".join(machine.facts.values()).encode()).hexdigest()[:16]
    return top / "pycollectives" / "tables" / key


def file_name(situation: Situation) -> str:
    suffix = "-crowded" if situation.oversubscribed else ""
    return f"{situation.kind}-{situation.size}x{situation.per_host}{suffix}.table"


def path_for(machine: Machine, situation: Situation) -> Path | None:
    home = folder(machine)
    return None if home is None else home / file_name(situation)


def load(machine: Machine, situation: Situation) -> list[Table]:
    """Reads tables that choose algorithms and were measured on `machine`, for a group and for smaller groups.

    `situation` describes the group. `split` may make smaller groups of it. The table for the largest group comes first.
    Raises ValueError, which names the file, if a file is damaged.
    """
    home = folder(machine)
    names: list[Path] = []
    if home is not None:
        with contextlib.suppress(OSError):
            names = sorted(home.glob("*.table"))
    found = []
    for path in names:
        try:
            written = path.read_text(errors="replace")
        except OSError:
            continue  # replaced, or made unreadable: treated as missing
        table = parse(written[: LONGEST + 1], str(path))
        wanted = [row for row in table.rows if row.ranks[1] <= situation.size]
        if wanted and machine.facts.items() <= table.facts.items():
            found.append(named(Table(tuple(wanted), table.facts), path))
    return sorted(found, key=lambda table: -table.rows[0].ranks[1])


def named(table: Table, path: Path) -> Table:
    """Returns `table` with a text in the field `source` of each row: the date of the measurement and `path`."""
    return table.from_source(f"calibrated on {table.facts.get('made', 'a day unknown')}: {path}")


def covers(tables: Sequence[Table], situation: Situation) -> bool:
    """Whether one of `tables` was measured for a group with the number of ranks and the properties in `situation`."""
    exactly = (situation.size, situation.size)
    return any(row.ranks == exactly and not row.wire and row.fits(situation) for t in tables for row in t.rows)


def save(path: Path, table: Table) -> None:
    """Writes `table` to the file `path`, and replaces an earlier file in one atomic step. Raises OSError."""
    _write(path, text(table))


def costs_path(machine: Machine, kind: str) -> Path | None:
    home = folder(machine)
    return None if home is None else home / f"{kind}.costs"


def save_costs(path: Path, costs: Costs, machine: Machine, how: str) -> None:
    """Writes the simulator's costs (times of messages, copies and reductions) to the file `path` in one atomic step.

    The file begins with comments: the date, the properties of `machine`, and `how` the costs were measured. Raises
    OSError if it cannot be written.
    """
    reported = {"made": _today(), "how": how, **machine.facts}
    _write(path, "".join(f"# {name}: {value}\n" for name, value in reported.items()) + costs.to_text())


def load_costs(machine: Machine, kind: str) -> Costs | None:
    """Reads the simulator's costs for connections of the transport `kind` that were measured on `machine`.

    Returns None if there is no file. Raises ValueError, which names the file, if the file is damaged.
    """
    path = costs_path(machine, kind)
    if path is None or not path.exists():
        return None
    try:
        return Costs.from_text(path.read_text(errors="replace")[:LONGEST])
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from None


def _write(path: Path, written: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(written)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def reserved(path: Path) -> Iterator[bool]:
    """Returns a context manager that yields whether this process may measure the table for the file `path`.

    The file is for a table that chooses algorithms. The context manager yields False while another process measures
    this table. It also yields False if the file cannot be written, because then every run would measure again.
    """
    mark = path.with_name(f".{path.name}.lock")
    mine = False
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        if mark.exists() and time.time() - mark.stat().st_mtime > _STALE:
            mark.unlink()
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        mine = True
    try:
        yield mine
    finally:
        if mine:
            with contextlib.suppress(OSError):
                mark.unlink()


def described(table: Table, machine: Machine, situation: Situation, how: str, more: Mapping[str, str]) -> Table:
    """Returns `table` with notes about its measurement: the date, the machine, the group, and how it was measured.

    `more`: further notes, by name.
    """
    shape = {
        "kind": situation.kind,
        "ranks": str(situation.size),
        "ranks-per-host": str(situation.per_host),
        "crowded": "yes" if situation.oversubscribed else "no",
    }
    return Table(table.rows, {"made": _today(), "how": how, **machine.facts, **shape, **more})


def _today() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
