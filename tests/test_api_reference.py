"""docs/api.md is what the docstrings say, and every public name is in it."""

from __future__ import annotations

import subprocess
import sys
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


def test_signatures_are_those_of_the_source() -> None:
    page = api_reference.page()
    assert "\nsplit(color: int | None" in page.replace("(\n    ", "(")
    assert "class PeerLost(CollectiveError)" in page and "\nrank: int\n" in page
