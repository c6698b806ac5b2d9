"""docs/api.md is what the docstrings say, and every public name is in it."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import collectives
from tools import api_reference

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_up_to_date() -> None:
    """`make docs` writes it."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.api_reference", "--check"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_name_has_an_entry_and_every_entry_words() -> None:
    page = api_reference.page()
    core = page.partition("\n## collectives.torch\n")[0]
    for name in collectives.__all__:
        if not name.startswith("__"):
            assert f"\n### {name}\n" in core, name
    for call in ("allreduce", "allgatherv", "alltoallv", "broadcast_async", "reduce_scatter_async", "explain"):
        assert f"\n#### Communicator.{call}\n" in core, call
    for package in api_reference.PACKAGES:
        assert f"\n## {package}\n" in page


def test_an_overloaded_function_is_shown_as_its_definition() -> None:
    tree = ast.parse(
        "@overload\ndef f(x: int) -> int: ...\n"
        "@overload\ndef f(x: str) -> str: ...\n"
        "def f(x: int | str) -> int | str:\n    'Returns x.'\n    return x\n"
    )
    (found,) = api_reference.statements(tree)
    assert ast.get_docstring(found) == "Returns x."  # type: ignore[arg-type]
    method = ast.parse("class C:\n" + textwrap.indent(ast.unparse(tree), "    ")).body[0]
    assert isinstance(method, ast.ClassDef)
    _, shown = api_reference.members("collectives", method)["f"]
    assert ast.get_docstring(shown) == "Returns x."


def test_signatures_are_those_of_the_source() -> None:
    page = api_reference.page()
    assert "\nsplit(color: int | None" in page.replace("(\n    ", "(")
    empty = page.partition("\n#### Communicator.empty\n")[2].partition("\n#### ")[0]
    assert "where: str = 'host',\n" in empty and '\nWith `where="cuda"`' in empty
    assert "class PeerLost(CollectiveError)" in page and "\nrank: int\n" in page
