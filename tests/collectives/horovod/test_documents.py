"""docs/horovod.md names all that Horovod has, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.collectives.horovod import signatures

DOCUMENT = Path(__file__).parents[3] / "docs" / "horovod.md"


def _rows(heading: str) -> list[list[str]]:
    """The cells of the tables after a heading."""
    part = DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]


def _named(heading: str, module: str) -> set[str]:
    """In the first column, of rows that are about that module."""
    rows = [row for row in _rows(heading) if len(row) > 2 and module in row[1].split()]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])}


def _known(*modules: str) -> set[str]:
    return {name for module in modules for name in (*getattr(signatures, module), *signatures.VALUES[module].split())}


def test_every_name_is_in_the_table_of_its_module() -> None:
    for module, names in (
        ("T", _known("TENSORFLOW")),
        ("K", _known("KERAS", "TENSORFLOW_KERAS")),
        ("P", _known("TORCH")),
    ):
        results = _named("Supported names", module) | _named("Names that are not supported", module)
        assert names - {"stop_timeline"} <= results, (module, names - results)


def test_no_other_name_is_there() -> None:
    known = _known("TENSORFLOW", "KERAS", "TENSORFLOW_KERAS", "TORCH")
    for heading in ("Supported names", "Names that are not supported"):
        for module in "TKP":
            unknown = _named(heading, module) - known
            assert not unknown, (heading, module, unknown)


def test_every_argument_of_optimizers_is_told_of() -> None:
    results = {name for row in _rows("Supported names") if len(row) == 2 for name in re.findall(r"`(\w+)`", row[0])}
    wanted = set()
    for functions in (signatures.TENSORFLOW, signatures.KERAS, signatures.TENSORFLOW_KERAS, signatures.TORCH):
        for name, given in functions.items():
            if name.startswith(("Distributed", "Partial")):
                wanted |= {argument.partition("=")[0] for argument in given.split()}
    assert wanted - {"optimizer", "gradtape"} <= results
