"""Decision records have one form, and what names a record or a result leads to it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.documents import anchors
from tools.decision_index import FOLDER, GROUPS, page, records

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = ["Question", "Measured", "Decided", "When to look again"]
SOURCES = ("native", "transports", "rendezvous", "collectives", "bench", "tests", "tools", "examples", "docs")
LINK = re.compile(r"docs/((?:decisions/|performance\.md)[\w./#-]*)")


@pytest.mark.parametrize("record", list(records()), ids=lambda record: record.name)
def test_a_record_has_its_headings_and_at_most_40_lines(record: Path) -> None:
    lines = record.read_text().splitlines()
    assert [line[3:] for line in lines if line.startswith("## ")] == HEADINGS
    assert len(lines) <= 40, len(lines)
    assert re.fullmatch(r"\d{3}-[a-z0-9-]+\.md", record.name)
    assert re.match(rf"# {record.name[:3]} \S", lines[0]), "the title begins with the number"
    for heading, following in zip(HEADINGS, [*HEADINGS[1:], None], strict=True):
        part = record.read_text().partition(f"## {heading}\n")[2].partition(f"\n## {following}")[0]
        assert part.strip(), heading


def test_every_number_is_used_once() -> None:
    numbers = Counter(int(record.name[:3]) for record in records())
    assert numbers and set(numbers.values()) == {1}
    assert set(GROUPS) <= {record.name[:3] for record in records()}


def test_the_index_is_up_to_date() -> None:
    """`make docs` writes it."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.decision_index", "--check"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(record.name in page() for record in records())


def test_records_that_records_name_exist() -> None:
    numbers = {record.name[:3] for record in records()}
    for record in records():
        for group in re.findall(r"\brecords? (\d{3}(?:(?:, | and )\d{3})*)", record.read_text()):
            assert set(re.findall(r"\d{3}", group)) <= numbers, f"{record.name}: {group}"


def test_what_code_says_about_records_and_results_leads_somewhere() -> None:
    found = 0
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".pyi", ".cpp", ".hpp", ".sh", ".md", ".txt") or path == Path(__file__):
                continue
            for link in LINK.findall(path.read_text()):
                file, _, anchor = link.rstrip("./").partition("#")
                target = ROOT / "docs" / file
                assert target.exists(), f"{path.relative_to(ROOT)}: {link}"
                assert not anchor or anchor in anchors(target), f"{path.relative_to(ROOT)}: {link}"
                found += 1
    assert found and FOLDER.is_dir()
