"""Writes docs/performance.md from the results under bench/results/.

    python -m tools.performance_page                                       # write it
    python -m tools.performance_page --check                               # exit code 1 if it is not up to date
    python -m tools.performance_page --add standing.json --machine M1      # first add a run's JSON to the results

Invariant: every figure on the page is in a file under bench/results/, and is shown with its machine and date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from tools.results import FOLDER, Line, Ratio, Results, Source, Table, Value, WrongResult, condensed, read

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
DECISIONS: Final = PAGE.parent / "decisions"
HEAD: Final = """# Performance

This page is written by `python -m tools.performance_page` from the files under `bench/results/`. The [decision
records](decisions/README.md) say what was tried, and why the library does what it does. [benchmark.md](benchmark.md)
describes how `collectives bench` measures.

Compare ratios rather than times: both figures of a ratio come from one machine at about the same time. Each figure has
the date of its measurement; the code may have changed since. No figure says anything about machines that are not listed
here.
"""
REPEAT: Final = """## How to repeat this

```console
collectives bench standing --json standing.json               # beside Open MPI, MPICH, Intel MPI and Gloo, 10 minutes
collectives bench --memory --json memory.json
collectives bench meeting --json meeting.json
python -m tools.performance_page --add standing.json --machine M1 --conditions "quiet"
```

The last command copies the results in `standing.json` to a file under `bench/results/`, without their raw samples, and
writes this page anew. A line of a table that was measured again replaces the older line of the same machine. A new
machine needs a description in `bench/results/machines.json`. For the other figures of this page, the commands stand
below the titles of their sections.
"""
BANDS: Final = ("8 B to 4 KiB", "16 KiB to 1 MiB", "4 MiB and more")
MPI: Final = ("openmpi", "mpich", "impi")
NAMES: Final = {MPI: "best MPI", ("openmpi-tcp",): "Open MPI, TCP", ("gloo",): "Gloo"}
BESIDE: Final = (
    (
        "The time of this library divided by the time of the fastest other system, for sums of `float32`. Each cell "
        "has two ratios for the sizes in the range of its column: the largest ratio, and the median. [The "
        "benchmark](benchmark.md#the-table-of-targets) describes the sizes, the method, and the targets, which are the "
        "largest ratios accepted. The benchmark starts all processes three times (three launches). Each launch has "
        "several rounds, and in each round all systems are measured in turn. *In a row* means 100 calls without a "
        "barrier between them."
    ),
    (
        "Before and after each round, the benchmark times a fixed loop on two cores, and short messages between two "
        "ranks. These times show whether the virtual machine has moved to other cores or has slowed down. A round is "
        "[left out](benchmark.md#modes-of-a-machine) of the ratios if its times differ too much from those of the "
        "median round. The two cores are *near* each other if they share a cache, and otherwise *far* from each other."
    ),
)
# The subject of each table, by its title, in the order of the page.
ABOUT: Final = {
    "Allreduce beside Gloo": (
        "Time of an allreduce of `float32` in ordinary arrays: the median over the iterations, on the slowest rank."
    ),
    "Arrays of comm.empty beside the push floor": (
        "The rate of an allreduce of arrays that `comm.empty` made in shared memory, in percent of the push floor. The "
        "[push floor](benchmark.md#beside-the-machines-limits) is the rate of a simple program in which each process "
        "reduces its part of all inputs and stores the result into all outputs, without waiting for other processes. "
        "Its copies are not the fastest possible, so more than 100 % can be reached."
    ),
    "TCP beside plain sockets": (
        "The rate of an allreduce over TCP, in percent of the rate of two processes that send each other as many bytes "
        "over plain sockets ([`duplex`](benchmark.md#beside-the-machines-limits))."
    ),
    "16-bit floats beside as many of 32 bits": (
        "The time of an allreduce of `float16` or `bfloat16`, divided by the time for as many elements of `float32`."
    ),
    "The automatic choice beside the best algorithm": (
        "The time of a call with the algorithm that the library [chooses by itself](choosing.md), divided by the time "
        "of the same call with the fastest algorithm. The column *worst* has the largest ratio of all calls that were "
        "tried, *calls* their number."
    ),
    "Error of the simulator": (
        "The [simulator](simulate.md) predicts the time of a collective. Its error is the median of |predicted time / "
        "measured time - 1|. Predictions use latencies, bandwidths and other costs that were [measured on the same "
        "machine](simulate.md#the-costs-of-a-machine)."
    ),
    "Four hosts on links of 1 Gbit/s": (
        "Allreduce of n bytes among h = 4 hosts, which are network namespaces of one machine. It takes at least the "
        "time 2(h-1)/h · n / (rate of a link), which is called the bound. A figure is the bound divided by the "
        "measured time. About 95.6 % is the most that is possible, because packets of 1500 bytes also carry headers. "
        "The algorithm `star`, in which one rank receives all arrays and sends all results, takes at least twice the "
        "bound."
    ),
    "Bytes that each of four hosts sends": (
        "Bytes that a host sends over the same links in an allreduce of n bytes, divided by n. The least possible "
        "value is 1.5."
    ),
    "Ranks that share cores": (
        "Time of an allreduce of 8 bytes through shared memory, where several ranks run on each core."
    ),
    "Many arrays in one call": "Time to reduce all gradients of a model between 2 ranks.",
    "Gradients through frameworks": (
        "Time to exchange all gradients of a model between 2 ranks. *Ours* is the time with this library's gradient "
        "hook or backend, *theirs* the time with the framework's own exchange "
        "([method](benchmark.md#through-the-frameworks))."
    ),
    "Exchange beside backpropagation": (
        "Time of a training step in TensorFlow on two hosts with a link of 1 Gbit/s between them. The model has 8 "
        "dense layers of 768 units and 18 MiB of gradients. Gradients are exchanged by one fused call after "
        "backpropagation, or in buckets during backpropagation. *Saved* is the time that buckets save, in percent of a "
        "step with one fused call: the median over pairs of consecutive steps."
    ),
    "Memory": "Resident memory that the library costs a rank ([what is counted](benchmark.md#memory)).",
    "Meeting": (
        "Time until all ranks have joined a group, from the start of the first rank: for the exchange of addresses "
        "through the store alone, and for all of `collectives.init()`. In the same rounds, torch.distributed connects "
        "as many processes by its TCPStore and Gloo. Figures are medians over several rounds; the ranks are threads of "
        "one process, or of several ([method](benchmark.md#meeting-and-lifetimes))."
    ),
    "Memory of a rank that has met": (
        "Resident memory by which a rank grows until all ranks have met and each has the list of all others, before "
        "links are opened."
    ),
}


def page(results: Results) -> str:
    parts = [HEAD, *_machines(results), *_standing(results)]
    titles = dict.fromkeys([*ABOUT, *(table.title for table in results.tables)])
    for title in titles:
        if same := [table for table in results.tables if table.title == title]:
            parts += _figures(title, same)
    return "\n".join([*parts, REPEAT])


def _machines(results: Results) -> Iterator[str]:
    yield "## Machines\n"
    yield from (_item(f"**{name}**: {text}") for name, text in results.machines.items())
    yield ""


def _standing(results: Results) -> Iterator[str]:
    yield "## Beside MPI and Gloo\n"
    yield from (f"{_paragraph(text)}\n" for text in BESIDE)
    for machine in dict.fromkeys(line.source.machine for line in results.lines):
        lines = [line for line in results.lines if line.source.machine == machine]
        yield f"### {machine}\n"
        for source in dict.fromkeys(line.source for line in lines):
            yield f"{_from(source)}\n"
        yield _row(["", "against", *BANDS])
        yield "|---" * 5 + "|"
        yield from (_row([_call(line), _against(line), *map(_ratio, line.ratios)]) for line in lines)
        yield ""
        for remark in (r for source in dict.fromkeys(line.source for line in lines) for r in source.remarks):
            yield _item(remark)
        yield ""


def _figures(title: str, tables: Sequence[Table]) -> Iterator[str]:
    yield f"## {title}\n"
    if title in ABOUT:
        yield f"{_paragraph(ABOUT[title])}\n"
    if commands := dict.fromkeys(table.command for table in tables if table.command):
        yield "\n".join(["```console", *commands, "```\n"])
    for columns in dict.fromkeys(table.columns for table in tables):
        same = [table for table in tables if table.columns == columns]
        yield _row([same[0].unit, *columns, "where, when"])
        yield "|---" * (len(columns) + 2) + "|"
        for table in same:
            measured = f"{table.source.machine}, {_day(table.source.date)}"
            yield from (_row([what, *map(_value, values), measured]) for what, values in table.rows)
        yield ""
    for source in dict.fromkeys(table.source for table in tables):
        if source.conditions:
            yield _item(f"{source.machine}, {_day(source.date)}: {source.conditions}")
    yield ""


def _from(source: Source) -> str:
    commands = ", ".join(f"`{command}`" for command in source.commands)
    kept = "recorded by hand" if source.recorded else "kept"
    where = f"Measured on {_day(source.date)} with {commands}; {kept} in `bench/results/{source.file}`."
    return _paragraph(f"{where} {source.conditions}")


def _call(line: Line) -> str:
    parts = [line.collective, f"{line.ranks} ranks"]
    parts += ["TCP"] * (line.transport == "tcp") + ["`comm.empty`"] * (line.buffers == "shared")
    return ", ".join([*parts, *["in a row"] * (line.row > 1)])


def _against(line: Line) -> str:
    return NAMES.get(line.against, ", ".join(line.against))


def _ratio(ratio: Ratio) -> str:
    if ratio is None:
        return ""
    return ", ".join(f"{value:.2f}" for value in ratio if value is not None)


def _value(value: Value) -> str:
    if value is None:
        return ""
    if not isinstance(value, list):
        return f"{value:,.12g}".replace(",", " ")
    low, high = value
    return f"{low:g} and more" if high is None else f"{low:g} to {high:g}"


def _paragraph(text: str, first: str = "", others: str = "") -> str:
    """The text as lines of at most 120 columns, with a link for each decision record that it names."""
    return textwrap.fill(
        re.sub(r"record (\d{3})", _record, text),
        width=120,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _item(text: str) -> str:
    return _paragraph(text, "- ", "  ")


def _record(found: re.Match[str]) -> str:
    record = next(DECISIONS.glob(f"{found[1]}-*.md"), None)
    return found[0] if record is None else f"[record {found[1]}](decisions/{record.name})"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _day(date: str) -> str:
    day = datetime.fromisoformat(date)
    return f"{day.day} {day:%B %Y}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.performance_page", description="Write docs/performance.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is not up to date")
    parser.add_argument("--add", type=Path, metavar="FILE", help="a run's JSON to keep under bench/results/")
    parser.add_argument("--machine", help="its name in bench/results/machines.json")
    parser.add_argument("--command", action="append", default=[], help="how it was measured; may be repeated")
    parser.add_argument("--conditions", default="", help="what else a reader has to know")
    given = parser.parse_args()
    if given.add and not given.machine:
        parser.error("--add needs --machine")
    return given


def keep(path: Path, machine: str, commands: Sequence[str], conditions: str, folder: Path = FOLDER) -> Path:
    """Copy the JSON file `path`, which `collectives bench --json` has written, into `folder`, without its raw samples.

    `machine`, `commands` and `conditions` (other facts that a reader has to know) are stored with the results. The new
    file's name has the date, the machine and the kind of the results; return its path. Raises: WrongResult if it is no
    result of the benchmark; OSError.
    """
    document = json.loads(path.read_text())
    day = document.get("started", datetime.now().isoformat())[:10]
    kind = "memory" if document.get("memory") else str(document.get("format")).rpartition(" ")[2]
    kept = condensed(document, machine, day, [*commands] or [f"collectives bench {kind}"], conditions)
    target = folder / f"{day}-{machine.lower()}-{kind}.json"
    target.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return target


def main() -> int:
    given = _arguments()
    try:
        if given.add:
            keep(given.add, given.machine, given.command, given.conditions)
        wanted = page(read())
    except (WrongResult, OSError) as error:
        print(f"docs/performance.md: {error}", file=sys.stderr)
        return 1
    if given.check:
        if PAGE.exists() and PAGE.read_text() == wanted:
            return 0
        print("docs/performance.md is not what bench/results/ says: python -m tools.performance_page", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
