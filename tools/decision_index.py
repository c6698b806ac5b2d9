"""Writes docs/decisions/README.md: every decision record under its title, in the order of their numbers.

    python -m tools.decision_index             # write it
    python -m tools.decision_index --check     # exit code 1 if it is not up to date

Invariant: the index lists every record once, and has no text that is not in a record, except headings of groups.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "decisions"
INDEX: Final = FOLDER / "README.md"
HEAD: Final = """# Decision records

Written by `python -m tools.decision_index` from the files beside it. A record says which question was asked, what was
measured, what was decided because of it, and when to look again. It has at most 40 lines. M1 to M4 are the
[machines](../performance.md#machines) of the results. Two figures separated by a comma are two runs, or those
before and after a change where the text says so. *Near* and *far* are the two modes in which the cores of a virtual
machine may be ([why that matters](038-benchmarks-on-changing-machines.md)).

A new record takes the next number and is written when a choice rests on a measurement. One whose decision no longer
holds is removed: git keeps it.
"""
# The first record of each group.
GROUPS: Final = {
    "001": "Short calls and waiting",
    "009": "Reductions in shared memory",
    "015": "Staging memory and links",
    "021": "Reading another process's memory",
    "024": "Where results are written",
    "027": "TCP and links between hosts",
    "032": "Choosing, fusing, predicting",
    "037": "Meeting, measuring, removing",
}


def records(folder: Path = FOLDER) -> Iterator[Path]:
    """The files of all records, in the order of their numbers."""
    yield from sorted(path for path in folder.glob("*.md") if path.name != INDEX.name)


def title(record: Path) -> str:
    """The heading of a record, without its number."""
    return record.read_text().partition("\n")[0].removeprefix("# ").partition(" ")[2]


def page(folder: Path = FOLDER) -> str:
    parts = [HEAD]
    for record in records(folder):
        number = record.name[:3]
        if number in GROUPS:
            parts.append(f"\n## {GROUPS[number]}\n\n")
        parts.append(f"- [{number}]({record.name}) {title(record)}\n")
    return "".join(parts)


def main() -> int:
    wanted = page()
    if "--check" not in sys.argv[1:]:
        INDEX.write_text(wanted)
        return 0
    if INDEX.exists() and INDEX.read_text() == wanted:
        return 0
    print("docs/decisions/README.md is not what the records say: python -m tools.decision_index", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
