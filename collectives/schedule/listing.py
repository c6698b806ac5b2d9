"""Schedules as text: one rank's steps, or all ranks' steps round by round.

Invariant: every step of the schedule is shown unchanged, in the notation of the module `text`.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives.schedule.dependencies import dependencies
from collectives.schedule.form import IN, OUT, Schedule
from collectives.schedule.group import Group
from collectives.schedule.layout import Layout
from collectives.schedule.play import Play
from collectives.schedule.text import step_text

_LEGEND = ">3: to rank 3; <3: the next message from rank 3; total: a reduction that holds every rank's part"


def explain(schedule: Schedule, in_place: bool = False) -> str:
    """One rank's steps, each with the steps on which it depends."""
    waits = dependencies(schedule, in_place)
    lines = [_title(schedule) + f", rank {schedule.rank}", _buffers(schedule), ""]
    texts = [step_text(step) for step in schedule.steps]
    width = max((len(text) for text in texts), default=0)
    for number, text in enumerate(texts):
        after = sorted({d.step for d in waits[number]})
        lines.append(f"{number:5}  {text:{width}}  {_after(after)}".rstrip())
    if not texts:
        lines.append("       nothing to do")
    lines += ["", _LEGEND]
    return "\n".join(lines)


def explain_group(
    schedules: Sequence[Schedule], width: int = 120, in_place: bool = False, layout: Layout | None = None
) -> str:
    """The steps of all ranks as a text table: a row for each round, a column for each rank, `width` characters or less.

    `schedules` has one list of steps for each rank. Columns that do not fit into the width follow in a second table
    below. The messages of a round can all be in progress at the same time; they need only data of earlier rounds. If
    `layout` has several hosts, and several ranks on a host, each column names its host, and each host has tables of its
    own. `in_place`: the input and output buffers are the same memory. Raises VerificationError if the schedules
    deadlock or a send has no receive.
    """
    group = Group(schedules)
    rounds = Play(group, in_place).rounds()
    last = max(rounds, default=0)
    cells: list[list[list[str]]] = [[[] for _ in schedules] for _ in range(last + 1)]
    for number, step in enumerate(group.steps):
        cells[rounds[number]][group.rank_of[number]].append(step_text(step))
    hosts = layout.hosts if layout is not None and layout.nested else [0] * len(schedules)
    names = [f"rank {r}, host {host}" if len({*hosts}) > 1 else f"rank {r}" for r, host in enumerate(hosts)]
    widths = [max([len(names[r]), *(len(t) for row in cells for t in row[r])]) for r in range(len(schedules))]
    where = f" on {len({*hosts})} hosts" if len({*hosts}) > 1 else ""
    lines = [f"{_title(schedules[0])}{where}: {last} round{'' if last == 1 else 's'}", _buffers(schedules[0])]
    first = 0
    while first < len(schedules):
        beyond = first + 1
        while (
            beyond < len(schedules)
            and hosts[beyond] == hosts[first]
            and 7 + sum(w + 3 for w in widths[first : beyond + 1]) <= width
        ):
            beyond += 1
        lines += ["", *_table(cells, names, widths, range(first, beyond))]
        first = beyond
    return "\n".join([*lines, "", _LEGEND])


def _table(cells: list[list[list[str]]], names: list[str], widths: list[int], ranks: range) -> list[str]:
    lines = ["round  " + "   ".join(f"{names[r]:{widths[r]}}" for r in ranks).rstrip()]
    lines.append("-----  " + "   ".join("-" * widths[r] for r in ranks))
    for number, row in enumerate(cells):
        for i in range(max(len(row[r]) for r in ranks)):
            texts = [row[r][i] if i < len(row[r]) else "" for r in ranks]
            head = f"{number:5}" if i == 0 else " " * 5
            lines.append(
                f"{head}  {'   '.join(f'{t:{widths[r]}}' for t, r in zip(texts, ranks, strict=True))}".rstrip()
            )
    return lines


def _title(schedule: Schedule) -> str:
    root = f", root {schedule.root}" if schedule.root else ""
    return f"{schedule.collective} {schedule.algorithm}, {schedule.size} rank{'' if schedule.size == 1 else 's'}{root}"


def _buffers(schedule: Schedule) -> str:
    parts = [f"{name} {_blocks(schedule.grid[buffer])}" for buffer, name in ((IN, "IN"), (OUT, "OUT"))]
    parts += [f"scratch S{number} {_blocks(len(slot))}" for number, slot in enumerate(schedule.scratch)]
    return ", ".join(parts)


def _blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"


def _after(steps: list[int]) -> str:
    return "after " + ", ".join(map(str, steps)) if steps else ""
