"""Reads the files under bench/results/: measured documents of `collectives bench`, and figures recorded by hand.

    python -m tools.performance_page --add standing.json --machine M1      # add a run

Invariant: a file is kept as it was written, except that raw samples are replaced by their statistics. Each file names
its machine, its date and the commands. If two files have the same line for the same machine, the newer file counts.

Formats (key `format`):
    pycollectives machines             {"machines": {name: description}}
    pycollectives bench standing       the table of targets, as `bench standing --json` writes it
    pycollectives bench                `bench --memory --json`
    pycollectives bench meeting        `bench meeting --json`
    pycollectives recorded standing    the table of targets, recorded by hand: worst and median of each band
    pycollectives recorded figures     {"tables": [{"title", "unit", "command", "columns", "rows"}]}; a value is a
                                       number, a range [low, high], a lower limit [low, null] or null
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

FOLDER: Final = Path(__file__).resolve().parents[1] / "bench" / "results"
STANDING: Final = "pycollectives bench standing"
BENCH: Final = "pycollectives bench"
MEETING: Final = "pycollectives bench meeting"
RECORDED_STANDING: Final = "pycollectives recorded standing"
RECORDED_FIGURES: Final = "pycollectives recorded figures"
MACHINES: Final = "pycollectives machines"
MIB: Final = 1 << 20

Value: TypeAlias = "float | list[float | None] | None"
Ratio: TypeAlias = "tuple[float, float | None] | None"  # worst size of a band, median over its sizes


class WrongResult(ValueError):
    """A JSON file with benchmark results is invalid. The message has the file's name and the reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where results come from: the file, the machine, the date and the commands that measured them.

    `conditions` and `remarks` are texts for the reader. `recorded` tells whether the results were written down by hand,
    so that no raw data of the run exist.
    """

    file: str
    machine: str
    date: str
    commands: tuple[str, ...]
    conditions: str
    remarks: tuple[str, ...]
    recorded: bool


@dataclass(frozen=True, slots=True)
class Line:
    """The results of comparing this library with others for one collective.

    `ratios` has, for each of three ranges of message sizes, this library's time divided by that of the fastest library
    in `against`. `row` is the number of calls without a barrier between them.
    """

    source: Source
    transport: str
    buffers: str
    ranks: int
    row: int
    collective: str
    against: tuple[str, ...]
    ratios: tuple[Ratio, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return (self.transport, self.buffers, self.ranks, self.row, self.collective, self.against)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of measured values for the documentation, all in the same unit.

    `rows` has a label for each row, and one value for each of `columns`.
    """

    source: Source
    title: str
    unit: str
    command: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Value, ...]], ...]


@dataclass(frozen=True, slots=True)
class Results:
    """All benchmark results that are kept in the repository.

    `machines` describes each machine, by name. If a comparison or a table was measured more than once on a machine,
    only the newest is included.
    """

    machines: dict[str, str]
    lines: tuple[Line, ...]
    tables: tuple[Table, ...]


def read(folder: Path = FOLDER) -> Results:
    """Read all files of the folder. Raises WrongResult."""
    machines: dict[str, str] = {}
    lines: dict[tuple[object, ...], Line] = {}
    tables: dict[tuple[str, str], Table] = {}
    documents = [(path.name, _load(path)) for path in sorted(folder.glob("*.json"))]
    for name, document in sorted(documents, key=lambda item: (item[1].get("date", ""), item[0])):
        try:
            if document["format"] == MACHINES:
                machines.update(document["machines"])
                continue
            source = _source(name, document)
            for line in _lines(source, document):
                lines[source.machine, line.key] = line
            for table in _tables(source, document):
                tables[source.machine, table.title] = table
        except (KeyError, TypeError, IndexError) as error:
            raise WrongResult(f"{name}: {type(error).__name__} {error}") from error
    sources = [line.source for line in lines.values()] + [table.source for table in tables.values()]
    if unknown := {source.machine for source in sources} - set(machines):
        raise WrongResult(f"machines.json does not describe {', '.join(sorted(unknown))}")
    return Results(
        dict(sorted(machines.items())),
        tuple(sorted(lines.values(), key=lambda line: line.source.machine)),
        tuple(sorted(tables.values(), key=lambda table: table.source.machine)),
    )


def condensed(
    document: dict[str, Any], machine: str, date: str, commands: list[str], conditions: str
) -> dict[str, Any]:
    """Return the JSON document of a benchmark run without its raw samples, with four values added.

    They are `machine`, `date`, `commands` and `conditions` (other facts that a reader has to know). Raises: WrongResult
    if `document` is no complete result of the benchmark.
    """
    if document.get("format") not in (STANDING, BENCH, MEETING):
        raise WrongResult(f"not a document of `collectives bench`: {document.get('format')!r}")
    if document.get("complete") is False:
        raise WrongResult("the run was cut short")
    kept = {"machine": machine, "date": date, "commands": commands, "conditions": conditions}
    return {"format": document["format"], **kept, **_without_samples(document)}


def _without_samples(value: Any) -> Any:
    if isinstance(value, dict):
        inner = value.items()
        samples = "seconds" in value and isinstance(value.get("rounds"), list)
        return {key: _without_samples(item) for key, item in inner if not (samples and key == "rounds")}
    return [_without_samples(item) for item in value] if isinstance(value, list) else value


def _load(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise WrongResult(f"{path.name}: {error}") from error
    known = (MACHINES, STANDING, BENCH, MEETING, RECORDED_STANDING, RECORDED_FIGURES)
    if document.get("format") not in known:
        raise WrongResult(f"{path.name}: unknown format {document.get('format')!r}")
    return document


def _source(name: str, document: dict[str, Any]) -> Source:
    commands = tuple(document.get("commands", ()))
    remarks = tuple(document.get("remarks", ()))
    recorded = document["format"] in (RECORDED_STANDING, RECORDED_FIGURES)
    conditions = document.get("conditions", "")
    return Source(name, document["machine"], document["date"], commands, conditions, remarks, recorded)


def _lines(source: Source, document: dict[str, Any]) -> Iterator[Line]:
    if document["format"] == RECORDED_STANDING:
        for entry in document["lines"]:
            bands = tuple(None if band is None else (band["worst"], band.get("median")) for band in entry["bands"])
            yield _line(source, entry, bands)
    elif document["format"] == STANDING:
        rows: dict[str, list[dict[str, Any]]] = {}
        for cell in document["cells"]:
            rows.setdefault(json.dumps(cell["line"]), []).append(cell)
        for cells in rows.values():
            yield _line(source, cells[0]["line"], tuple(_judged(cell["sizes"]) for cell in cells))


def _judged(sizes: list[dict[str, Any]]) -> Ratio:
    """The ratios of one cell: that of the size which is worst compared with its target (`bar`), and the median."""
    if not sizes:
        return None
    worst = max(sizes, key=lambda size: size["ratio"] / size["bar"])
    return worst["ratio"], median(size["ratio"] for size in sizes)


def _line(source: Source, entry: dict[str, Any], ratios: tuple[Ratio, ...]) -> Line:
    against = tuple(entry["against"])
    ratios = (*ratios, *[None] * (3 - len(ratios)))
    where = (entry["transport"], entry["buffers"], entry["ranks"], entry["row"])
    return Line(source, *where, entry["collective"], against, ratios)


def _tables(source: Source, document: dict[str, Any]) -> Iterator[Table]:
    if document["format"] == RECORDED_FIGURES:
        for entry in document["tables"]:
            rows = tuple((row["what"], tuple(row["values"])) for row in entry["rows"])
            yield Table(source, entry["title"], entry["unit"], entry["command"], tuple(entry["columns"]), rows)
    command = source.commands[0] if source.commands else ""
    if document.get("memory"):
        figures = tuple((f["what"], (round(f["value"] / MIB, 2), f["bar"] / MIB)) for f in document["memory"])
        yield Table(source, "Memory", "MiB", command, ("measured", "target"), figures)
    if document["format"] == MEETING:
        met, command = document["meetings"], "\n".join(source.commands)
        kinds = {"meet": "through the store", "init": "init", "torch": "torch's TCPStore and Gloo"}
        if not any(m.get("torch") for m in met):
            del kinds["torch"]
        times = tuple((_who(m), tuple(_milliseconds(m.get(key)) for key in kinds)) for m in met)
        yield Table(source, "Meeting", "ms", command, tuple(kinds.values()), times)
        memory = tuple((_who(m), (round(m["memory"] / MIB, 2), 1)) for m in met if m.get("memory"))
        if memory:
            yield Table(source, "Memory of a rank that has met", "MiB", command, ("measured", "target"), memory)


def _who(meeting: dict[str, Any]) -> str:
    count, processes = meeting["ranks"], meeting.get("processes", 1)
    who = f"{count} ranks" if processes == 1 else f"{count} ranks in {processes} processes"
    return f"{who}, {meeting['store']} store"


def _milliseconds(seconds: list[float] | None) -> float | None:
    return round(1e3 * median(seconds), 1) if seconds else None
