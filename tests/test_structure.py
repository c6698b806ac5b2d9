"""The rooms of the house, and which may use which: docs/architecture.md in a form that can fail.

Invariant: arrows go down. A room uses only what stands before it in its list, and no transport's room uses another's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

# Of Python: folders of `collectives`, as they are imported, lowest first. Those in one line do not use each other.
PYTHON: Final = (
    {"native"},
    {"transports", "rendezvous"},
    {"base"},
    {"arrays"},
    {"engines"},
    {"schedule"},
    {"algorithms"},
    {"simulation"},
    {"calls"},
    {"calibration"},
    {"core"},
    {"face"},  # collectives/__init__.py: what users import
    {"gradients"},
    {"tensorflow", "torch", "jax"},
    {"keras"},
    {"horovod"},
    {"commands"},
    {"bench"},
)
# The other four packages have folders of their own at the top.
TOP: Final = ("native", "transports", "rendezvous", "bench")

# Of C++: folders of native/src, lowest first.
NATIVE: Final = (
    {"base"},
    {"reduce", "cuda"},
    {"link"},
    {"engine"},
    {"schedule"},
    {"tcp", "inproc", "shm", "verbs", "nccl", "leader", "core"},
    {"bind"},
)
# They register themselves: nothing but CMakeLists.txt names them.
TRANSPORTS: Final = {"tcp", "inproc", "shm", "verbs"}


def levels(rooms: tuple[set[str], ...]) -> dict[str, int]:
    return {room: level for level, same in enumerate(rooms) for room in same}


def python_files() -> Iterator[tuple[str, Path]]:
    """Each file of the library, with its room."""
    for path in sorted((ROOT / "collectives").rglob("*.py")):
        parts = path.relative_to(ROOT / "collectives").parts
        if parts[0] not in TOP:
            yield ("face" if len(parts) == 1 else parts[0]), path
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.py")):
            yield top, path


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """The rooms that a file uses, and in which line. What is imported for type checkers only, is not used."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module] if node.module != "collectives" else [f"collectives.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "collectives":
                is_folder = len(parts) > 1 and (ROOT / "collectives" / parts[1]).is_dir()
                yield (parts[1] if is_folder else "face"), getattr(node, "lineno", 0)


def test_every_folder_of_python_has_its_level() -> None:
    assert {room for room, _ in python_files()} == set().union(*PYTHON)


def test_python_imports_go_down() -> None:
    level = levels(PYTHON)
    # The command line's entry, and the table of commands, name their modules; nothing is imported before it is used.
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {room} imports {other}"
        for room, path in python_files()
        for other, line in imported(path)
        if other != room and level[other] >= level[room] and path.name != "__main__.py"
    ]
    assert wrong == []


def test_every_folder_of_c_plus_plus_has_its_level() -> None:
    assert {path.name for path in (ROOT / "native" / "src").iterdir()} == set().union(*NATIVE)


def test_c_plus_plus_includes_go_down() -> None:
    level = levels(NATIVE)
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted((ROOT / "native" / "src").rglob("*.[ch]pp")):
        room = path.relative_to(ROOT / "native" / "src").parts[0]
        for other in re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE):
            if other != room and (level[other] >= level[room] or other in TRANSPORTS):
                found.setdefault((room, other), []).append(str(path.relative_to(ROOT)))
    assert found == {}


def test_no_type_of_a_transport_is_named_outside_its_room() -> None:
    """Also not by a declaration, nor in a cast: a link is a Link."""
    source = ROOT / "native" / "src"
    declared = re.compile(r"^(?:class|struct|enum class) (?:alignas\([^{]*\) )?(\w+)[^;({]*\{", re.MULTILINE)
    kinds = {
        name: room
        for room in TRANSPORTS
        for path in (source / room).rglob("*.hpp")
        if f"namespace collectives::{room}" not in path.read_text()  # there the namespace is what nobody else names
        for name in declared.findall(path.read_text())
    }
    assert {"ShmLink", "TcpLink", "InprocLink"} <= set(kinds)
    common = {"Line", "Head", "Post", "Header", "Board", "Pool", "Sleep", "Parts", "Reads"}  # words as well
    named = re.compile(rf"\b(?:{'|'.join(sorted(set(kinds) - common))})\b")
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(source.rglob("*.[ch]pp"))
        for name in named.findall(path.read_text())
        if path.parent.name != kinds[name]
    ]
    assert wrong == []
    spaces = re.compile(rf"\b(?:{'|'.join(sorted(TRANSPORTS))})::\w")
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(source.rglob("*.[ch]pp"))
        if path.parent.name not in TRANSPORTS
        for name in spaces.findall(path.read_text())
    ]
    assert wrong == []
    casts = [
        str(path.relative_to(ROOT))
        for path in sorted(source.rglob("*.[ch]pp"))
        if re.search(r"(?:dynamic|static)_cast<\w*Link[&*]", path.read_text())
    ]
    assert casts == []


def test_python_headers_are_included_by_the_bindings_alone() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "native" / "src").rglob("*.[ch]pp")
        if path.parent.name != "bind" and re.search(r"#include <(?:Python\.h|nanobind/|numpy/)", path.read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize("name", TOP)
def test_links_show_the_packages_to_what_reads_the_source_tree(name: str) -> None:
    link = ROOT / "collectives" / name
    assert link.is_symlink() and link.resolve() == ROOT / name
