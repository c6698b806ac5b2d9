"""Draws docs/layers.svg, the layers of Python and C++ folders, the highest at the top, from the tested lists.

    python -m tools.layers_drawing             # draw it
    python -m tools.layers_drawing --check     # exit code 1 if it is not up to date

Invariant: the picture shows the lists of `tests/test_structure.py`, which this test enforces, and has no own list.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.test_structure import NATIVE, PYTHON, TOP

DRAWING: Final = Path(__file__).resolve().parents[1] / "docs" / "layers.svg"
LABELS: Final = {"face": "collectives/__init__.py"}
WIDTH, ROW, GAP, BOX, MARGIN, TOP_OF_ROWS = 400, 24, 10, 120, 20, 64
STYLE: Final = """  <style>
    text { fill: #111; text-anchor: middle; }
    .head { font-weight: bold; font-size: 15px; }
    .note { font-size: 11.5px; fill: #444; }
    rect { stroke: #666; }
    .python { fill: #e6effa; }
    .top { fill: #e8f5e9; }
    .native { fill: #eceff1; }
    .arrow { stroke: #555; stroke-width: 1.4; fill: none; marker-end: url(#down); }
  </style>
  <defs>
    <marker id="down" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
      <path d="M0 0 10 5 0 10z" fill="#555"/>
    </marker>
  </defs>"""


def drawing() -> str:
    height = TOP_OF_ROWS + max(len(PYTHON), len(NATIVE)) * (ROW + GAP) + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (WIDTH + MARGIN)} {height}" '
        'font-family="DejaVu Sans, Verdana, sans-serif" font-size="13">'
    )
    parts = [head, "  <title>Layers: each folder uses those below it</title>", STYLE]
    parts.append(f'  <rect width="{2 * (WIDTH + MARGIN)}" height="{height}" style="fill: #fff; stroke: none"/>')
    parts += _column("Python", "collectives/, and four folders at the top", PYTHON, 0)
    parts += _column("C++", "native/src/", NATIVE, WIDTH + MARGIN)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _column(title: str, note: str, rooms: Sequence[set[str]], left: int) -> Iterator[str]:
    middle = left + (WIDTH + MARGIN) / 2
    yield f'  <text class="head" x="{middle:g}" y="26">{title}</text>'
    yield f'  <text class="note" x="{middle:g}" y="46">{note}</text>'
    for number, level in enumerate(reversed(rooms)):
        y = TOP_OF_ROWS + number * (ROW + GAP)
        wide = [max(BOX, 8 * len(LABELS.get(name, name)) + 16) for name in sorted(level)]
        x = middle - (sum(wide) + GAP * (len(wide) - 1)) / 2
        for name, width in zip(sorted(level), wide, strict=True):
            kind = "native" if title != "Python" else "top" if name in TOP else "python"
            yield f'  <rect class="{kind}" x="{x:g}" y="{y}" width="{width}" height="{ROW}" rx="4"/>'
            yield f'  <text x="{x + width / 2:g}" y="{y + 17}">{LABELS.get(name, name)}</text>'
            x += width + GAP
        if number + 1 < len(rooms):
            yield f'  <path class="arrow" d="M{middle:g} {y + ROW} V{y + ROW + GAP}"/>'


def main() -> int:
    wanted = drawing()
    if "--check" not in sys.argv[1:]:
        DRAWING.write_text(wanted)
        return 0
    if DRAWING.exists() and DRAWING.read_text() == wanted:
        return 0
    print("docs/layers.svg is not what tests/test_structure.py says: python -m tools.layers_drawing", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
