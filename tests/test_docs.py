"""The documentation agrees with the code: links, names, tables, figures and examples.

Invariant: what is checked is what readers see; nothing here repeats the documentation.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import collectives
from collectives.algorithms import algorithms
from collectives.commands import checks
from collectives.native import errors
from collectives.rendezvous.store import SCHEMES
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.form import Send
from collectives.schedule.group import Group
from collectives.schedule.layout import apart, even
from collectives.schedule.play import Play
from collectives.schedule.rounding import roundings
from collectives.schedule.verification import cost
from tests.documents import anchors
from tools import layers_drawing

ROOT = Path(__file__).parents[1]
HOME = Path(collectives.__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMAND = ("-c", "from collectives.commands.main import main; main(prog_name='collectives')")
FOLDERS = "native|transports|rendezvous|collectives|bench|tests|docs|examples|tools"


def text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@functools.cache
def native_code() -> str:
    """All of the engine's code, without line breaks."""
    files = sorted((ROOT / "native" / "src").rglob("*.[ch]pp"))
    return " ".join(" ".join(path.read_text() for path in files).split())


def rows(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table after `heading`, without its head."""
    lines = text(document).partition(f"{heading}\n")[2].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text(document), re.DOTALL)


def run(folder: Path, *arguments: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    env = {**kept, "PYTHONPATH": str(HOME), "COLUMNS": "120", "COLLECTIVES_CALIBRATE": "off"}
    done = subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=folder, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- all documents


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_relative_to(ROOT) and target.exists(), f"{path.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{path.name}: {link}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    for name in re.findall(rf"`((?:{FOLDERS})/[\w./]*)`", path.read_text()):
        assert (ROOT / name).exists(), f"{path.name}: {name}"


def test_documents_are_linked_from_another() -> None:
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text())
        if not link.startswith(("http", "#"))
    }
    lonely = [path.name for path in ROOT.glob("docs/**/*") if path.is_file() and path not in linked]
    assert not lonely


def test_every_mechanism_that_can_be_left_out_is_in_the_table() -> None:
    source = (ROOT / "native" / "src" / "base" / "mechanisms.cpp").read_text()
    names = re.findall(r'"([a-z-]+)"', source.partition("names{")[2].partition("}")[0])
    switches = [row[-1] for row in rows("mechanisms.md", "# Mechanisms of shared memory")]
    assert names
    assert sorted(names) == sorted(re.findall(r"`([a-z-]+)`", " ".join(switches)))


# --- architecture.md


def _architecture() -> str:
    """The page and those of its parts, on one line each."""
    pages = [
        "architecture.md",
        *(f"architecture/{path.name}" for path in sorted((ROOT / "docs/architecture").glob("*"))),
    ]
    return "\n".join(" ".join(text(page).split()) for page in pages)


def test_every_folder_of_c_plus_plus_is_described() -> None:
    described = [row[0].strip("`") for row in rows("architecture.md", "Inside `native/src/`:")]
    assert sorted(described) == sorted(f"native/src/{path.name}/" for path in (ROOT / "native" / "src").iterdir())


def test_every_folder_of_python_is_described() -> None:
    table = " ".join(row[0] for row in rows("architecture.md", "## Parts"))
    folders = [path.parent.name for path in ROOT.glob("collectives/*/__init__.py")]
    assert not [name for name in folders if f"{name}/`" not in table]


def test_the_drawing_of_layers_is_up_to_date() -> None:
    """`make docs` draws it."""
    assert layers_drawing.DRAWING.read_text() == layers_drawing.drawing()


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        ("at most one slice (128 KiB)", "default_slice = 128 << 10"),
        ("pieces of up to 256 KiB", "default_staging = 256 << 10"),
        ("pieces of 128 KiB", "default_slot = 128 << 10"),
        ("copies 256 KiB at a time", "copied_with_cores = 256 << 10"),
        ("1 MiB of staging", "slots_per_link = 4"),
        ("3 of 256 KiB", "default_staging = 256 << 10"),
        ("3 of 256 KiB", "cast_slots = 3"),
        ("64 lines", "lines_per_link = 64"),
        ("up to 56 bytes", "inline_bytes = 56"),
        ("`comm.empty()` array, 2 KiB or more", "direct_from_shm = 2 << 10"),
        ("Messages of up to 4 KiB are copied", "inproc_eager_up_to = 4 << 10"),
        ("in pieces of 1 MiB", "direct_piece = 1 << 20"),
        ("results of 12 MiB and more", "around_from = 12 << 20"),
        ("three quarters of its last-level cache", "cache / 4 * 3"),
        ("and 2.5 L bytes", "timed_up_to = 2.5"),
        ("Up to 32 operations", "most_at_a_time = 32"),
        ("4 of 256 KiB", "accumulators = 4"),
        ("up to 16 of 32 KiB", "most_accumulators = 16"),
        ("up to 16 of 32 KiB", "short_accumulator = 32 << 10"),
        ("of 4 KiB and more", "smallest_pooled = 4 << 10"),
        ("into eight pieces of 16 to 128 KiB", "pieces_one_way = 8"),
        ("into eight pieces of 16 to 128 KiB", "smallest_piece = 16 << 10"),
        ("after every fourth poll", "looks_per_question = 4"),
        ("slower than 0.38 of the speed", "quick_share = 0.38"),
        ("messages from 4 to 32 MiB", "joint_slowly_from = 4 << 20"),
        ("1 MiB if at most four ranks reduce", "placed_combined = 1 << 20"),
        ("less than 32 MiB from ranks that also receive", "pulled_below = 32 << 20"),
        ("a piece of 64 KiB or more", "joint_from = 64 << 10"),
        ("at most one second", "write_ends_within = 1.0"),
        ("more than 512 KiB", "whole_message = 512 << 10"),
        ("written 48 KiB at a time", "one_segment = 48 << 10"),
        ("a frame of 56 bytes", "sizeof(Frame) == 56"),
        ("more than 96 KiB", "size = 96 << 10"),
        ("at most 128 KiB of data that was never sent", "most_unsent = 128 << 10"),
        ("sockets have buffers of 768 KiB", "send_buffer_at_home = 768 << 10"),
        ("on one machine, writes of 1 MiB", "largest_write = 1 << 20"),
        ("fixed size (80, 112, 40 and 48 bytes)", "sizeof(Hello) == 80"),
        ("fixed size (80, 112, 40 and 48 bytes)", "sizeof(Reply) == 112"),
        ("fixed size (80, 112, 40 and 48 bytes)", "sizeof(Proof) == 40"),
        ("fixed size (80, 112, 40 and 48 bytes)", "sizeof(Closing) == 48"),
        ("an *offer* of at most 1 KiB", "most_offered = 1024"),
        ("has two seconds, and 128", "handshake_time = 2s"),
        ("has two seconds, and 128", "most_pending = 128"),
        ("where the arrays of all ranks together have at most 64 KiB", "most_of_all = 64 << 10"),
        ("some 2 000 times", "spins_with_cores = 2000"),
        ("up to 1 000 times", "most_yields = 1000"),
        ("half a millisecond", "yield_for = 500us"),
        ("more than a millisecond", "slow_yield = 1ms"),
        ("more than a third of the time", "worth_it = 2"),
        ("for the next 20 ms", "sleep_for = 20ms"),
        ("another rank's core for 50 ms", "away_for = 50ms"),
        ("in the last 0.3 s", "lately = 300ms"),
        ("within 50 ms", "longest_sleep = 50ms"),
    ],
)
def test_figures_are_those_in_the_code(stated: str, code: str) -> None:
    assert stated in _architecture()
    assert code in native_code()


RECORDS = ("015-staging-copy-is-timed", "025-results-around-the-caches")


def test_figures_in_decision_records_are_those_in_the_code() -> None:
    staging, results = (" ".join(text(f"decisions/{name}.md").split()) for name in RECORDS)
    code = native_code()
    assert "trials of 6 MiB" in staging and "trial_bytes = 6 << 20;" in code
    assert "after up to 64 times as much" in staging and "longest_interval = 64;" in code
    assert "Copies of 8 KiB and more" in staging and "timed_from = 8 << 10;" in code
    assert "from 12 MiB on" in results and "around_from = 12 << 20" in code


# --- algorithms.md


@pytest.mark.parametrize("hosts", [False, True])
def test_every_algorithm_is_in_its_table_with_its_claims(hosts: bool) -> None:
    yes = {True: "yes", False: ""}
    table = rows("algorithms.md", "## Over several hosts" if hosts else "## List of algorithms")
    printed = [[row[0], row[1], row[5], row[6]] for row in table]
    every = [a for c in COLLECTIVES for a in algorithms(c) if a.function.__module__.startswith("collectives.")]
    built_in = [a for a in every if a.hosts == hosts]
    assert printed == [[a.collective, a.name, yes[a.in_place], yes[a.uneven]] for a in built_in]
    for row, known in zip(table, built_in, strict=True):
        assert row[4] in " ".join((inspect.getdoc(known.function) or "").split()), known


def _value(formula: str, p: int) -> float:
    """A cell of the table, with n = 1."""
    powers = 1 << (p.bit_length() - 1)
    formula = re.sub(r"\[(.*?)\]", r"\1" if powers < p else "", formula)
    for word, number in (("ceil(log2 p)", "c"), ("log2 P", "l"), ("log2 p", "m")):
        formula = formula.replace(word, number)
    formula = re.sub(r"(?<=[\w)])\s*(?=[(a-zA-Z])", "*", formula)  # 2n(p-1) means 2*n*(p-1)
    names = {"n": 1, "p": p, "P": powers, "c": math.ceil(math.log2(p)), "l": int(math.log2(powers)), "m": math.log2(p)}
    return float(eval(formula, {"__builtins__": {}}, names))


@pytest.mark.parametrize("row", rows("algorithms.md", "## List of algorithms"), ids=lambda row: "-".join(row[:2]))
def test_rounds_and_bytes_are_bounds_that_are_reached(row: list[str]) -> None:
    (known,) = [a for a in algorithms(row[0]) if a.name == row[1]]
    reached = [False, False]
    for p in (2, 3, 4, 5, 6, 7, 8, 12, 16):
        schedules = [known(rank, p) for rank in range(p)]
        found = cost(Play(Group(schedules)))
        sent = found.blocks / max(schedules[0].grid)
        for i, (is_, bound) in enumerate([(found.rounds, _value(row[2], p)), (sent, _value(row[3], p))]):
            assert is_ <= bound + 1e-9, f"{p} ranks: {is_}, not {bound}"
            reached[i] |= is_ >= bound - 1e-9
    assert reached == [True, True]


@pytest.mark.parametrize("row", rows("algorithms.md", "## Over several hosts"), ids=lambda row: "-".join(row[:2]))
def test_rounds_and_bytes_between_hosts_are_bounds_that_are_reached(row: list[str]) -> None:
    (known,) = [a for a in algorithms(row[0]) if a.name == row[1]]
    reached = [False, False]
    for hosts in (2, 3, 4, 5, 8):
        bounds = [_value(cell.replace("h", "p").replace("H", "P"), hosts) for cell in (row[2], row[3])]
        for layout in (apart(hosts), even(2 * hosts, 2), even(3 * hosts, 3)):
            schedules = [known(rank, layout.size, 0, layout) for rank in range(layout.size)]
            leaving = [0] * hosts
            for s in schedules:
                for step in s.steps:
                    if isinstance(step, Send):
                        abroad = [p for p in step.peers if layout.hosts[p] != layout.hosts[s.rank]]
                        leaving[layout.hosts[s.rank]] += len(abroad) * step.chunk.count
            found = (cost(Play(Group(schedules))).rounds, max(leaving) / max(schedules[0].grid))
            for i, (is_, bound) in enumerate(zip(found, bounds, strict=True)):
                assert is_ <= bound + 1e-9, f"{layout}: {is_}, not {bound}"
                reached[i] |= is_ >= bound - 1e-9
    assert reached == [True, True]


def test_the_algorithm_that_is_written_there(tmp_path: Path) -> None:
    chain, prove, use = blocks("algorithms.md", "python")
    for name, program in (("chain", chain), ("prove", prove), ("use", use)):
        (tmp_path / f"{name}.py").write_text(program)
    assert "allreduce chain: verified, in place too, blocks of any sizes" in run(tmp_path, "prove.py")
    (console,) = [block for block in blocks("algorithms.md", "console") if block.startswith("$ ")]
    command, _, shown = console.partition("\n...\n")
    assert shown.strip() in run(tmp_path, *COMMAND, *command.split()[2:])
    assert run(tmp_path, *COMMAND, "run", "-n", "3", "use.py") == "[0] 3 ranks in a chain: 6.0\n"


# --- stores.md, launching.md, errors.md


def test_every_store_is_in_the_table() -> None:
    printed = {row[0].strip("`").partition("://")[0] for row in rows("stores.md", "# Stores")}
    assert printed == set(SCHEMES)


def test_ranks_as_threads(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(blocks("stores.md", "python")[-1])
    assert ast.literal_eval(run(tmp_path, "threads.py")) == {0: 3, 1: 3, 2: 3}


def test_every_variable_is_in_the_table() -> None:
    printed = re.findall(r"`COLLECTIVES_(\w+)`", " ".join(row[0] for row in rows("launching.md", "## Variables")))
    assert sorted(printed) == sorted(checks.VARIABLES)
    parameters = inspect.signature(collectives.init).parameters
    for row in rows("launching.md", "## Variables"):
        assert all(name in parameters for name in re.findall(r"`(\w+)`", row[1]))


def test_what_launchers_are_recognised_by() -> None:
    bootstrap = (ROOT / "rendezvous" / "bootstrap.py").read_text()
    source = bootstrap + (ROOT / "rendezvous" / "launchers.py").read_text()
    table = rows("launching.md", "## Other launchers")
    assert len(table) == bootstrap.partition('"""')[2].partition('"""')[0].count("\n|") - 2  # the same launchers
    for row in table:
        for name in re.findall(r"`([A-Z_]+)`", row[1] + row[2]):
            assert f'"{name}"' in source, name


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    tree = (errors.__doc__ or "").partition("CollectiveError")[2].partition("\n\nInvariant")[0]
    assert re.sub(r"\n    ", "\n", tree) in text("errors.md")
    headings = re.findall(r"^## (.*)$", text("errors.md"), re.MULTILINE)
    explained = {name for heading in headings for name in heading.split(", ")}
    # By the module, since frameworks' tests make further subclasses.
    known = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RuntimeError)}
    assert explained == known - {"CollectiveError"}


def test_missing_features_are_called_missing() -> None:
    """No document or message promises an error that nothing raises, a method or a transport that there is not."""
    library = [
        path
        for folder in ("native", "transports", "rendezvous", "collectives")
        for path in HOME.glob(f"{folder}/**/*.py")
    ]
    code = "\n".join(path.read_text() for path in library if path != HOME / "native" / "errors.py")
    engine = "\n".join(path.read_text() for path in HOME.glob("native/src/core/**/*.cpp"))
    for kind in errors.CollectiveError.__subclasses__():
        raised = re.search(rf"(?<!import )\b{kind.__name__}\(|: {kind.__name__}\b(?! as)|raise {kind.__name__}\b", code)
        word = re.sub("(?<!^)([A-Z])", r"_\1", kind.__name__).lower()
        raised = raised or re.search(rf"\.kind = ErrorKind::{word}\b", engine)
        announced = "Nothing raises it yet" in (kind.__doc__ or "")
        assert announced != bool(raised), kind
    assert not hasattr(collectives.Communicator, "shrink")
    for path in DOCUMENTS:
        if path.name not in ("CHANGELOG.md", "performance.md"):
            for sentence in re.findall(r"[^.]*\bshrink\(\)[^.]*", path.read_text()):
                assert "not implemented yet" in sentence.lower(), f"{path.name}: {sentence}"


def test_how_often_each_algorithm_rounds() -> None:
    table = rows("calls.md", "of ranks p:")
    seen = []
    for collective, names, *counts in table:
        for name in names.split(", "):
            algorithm = next(a for a in algorithms(collective) if a.name == name)
            assert [roundings(algorithm, size) for size in (2, 3, 5, 8, 64)] == list(map(int, counts)), algorithm
            seen.append(algorithm)
    assert set(seen) == {a for collective in ("allreduce", "reduce_scatter") for a in algorithms(collective)}
