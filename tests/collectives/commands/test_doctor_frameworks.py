"""What `collectives doctor` says of frameworks: versions, the way to each, and what is too old or missing.

Invariant: no framework is imported for it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from collectives.commands import frameworks
from collectives.commands.checks import Section
from collectives.commands.doctor import examine

MODULES = ("torch", "tensorflow", "jax", "keras")


def section(env: Mapping[str, str] = {}, home: Path = Path("/nowhere")) -> Section:
    return frameworks.section(env, home)


def installed(module: str) -> str:
    """Its version; skips where it is not there."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install {module}")
    try:
        return version(module)
    except PackageNotFoundError:
        return version(f"{module}-cpu")


def test_it_is_a_section_of_the_report() -> None:
    found = {one.title: one for one in examine({}, 1, None)}
    assert list(found["frameworks"].facts) == list(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_framework_with_its_version_and_the_way_to_it(module: str) -> None:
    way = {"jax": "foreign function interface (ffi)", "keras": "as its backend, tensorflow"}
    assert section().facts[module].startswith(f"{installed(module)}: ")
    assert section().facts[module].endswith(way.get(module, "")) and not section().problems


def test_what_is_asked_of_jax() -> None:
    installed("jax")
    assert "io_callback, as COLLECTIVES_JAX says" in section({"COLLECTIVES_JAX": "io_callback"}).facts["jax"]
    (problem,) = section({"COLLECTIVES_JAX": "callback"}).problems
    assert problem.severity == "broken" and "auto, ffi, io_callback" in problem.text


@pytest.mark.parametrize(("wanted", "severity"), [("auto", "hint"), ("ffi", "broken")])
def test_an_extension_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, wanted: str, severity: str) -> None:
    installed("jax")
    monkeypatch.setitem(sys.modules, "collectives.native._xla", None)
    found = section({"COLLECTIVES_JAX": wanted})
    (problem,) = found.problems
    assert problem.severity == severity and "native/_xla" in problem.text and "install pycollectives" in problem.advice
    assert found.facts["jax"].endswith("copies, by JAX's io_callback")


def test_the_backend_of_keras(tmp_path: Path) -> None:
    installed("keras")
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text(json.dumps({"backend": "torch"}))
    assert section({}, tmp_path).facts["keras"].endswith("as its backend, torch")
    assert section({"KERAS_BACKEND": "jax"}, tmp_path).facts["keras"].endswith("as its backend, jax")
    assert section({"KERAS_HOME": str(tmp_path / ".keras")}).facts["keras"].endswith("as its backend, torch")
    for text in ("[1]", "{", "{}"):
        (tmp_path / ".keras" / "keras.json").write_text(text)
        assert section({}, tmp_path).facts["keras"].endswith("as its backend, tensorflow")


TELL = """
import json, sys
from collectives.commands import frameworks
found = frameworks.section({})
imported = [name for name in ("torch", "tensorflow", "jax", "keras") if sys.modules.get(name)]
print(json.dumps([dict(found.facts), [[p.severity, p.text, p.advice] for p in found.problems], imported]))
"""


def test_one_that_is_too_old_one_that_is_missing_and_none_imported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch-2.3.1+cpu.dist-info").mkdir()
    (tmp_path / "torch-2.3.1+cpu.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.3.1+cpu\n"
    )
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['keras'] = None\n{TELL}"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    facts, problems, imported = json.loads(done.stdout)
    assert facts["torch"].startswith("2.3.1+cpu: ") and facts["keras"] == "not installed" and imported == []
    (problem,) = [one for one in problems if "torch" in one[1]]
    assert problem[0] == "hint" and "older than 2.6" in problem[1] and problem[2] == "pip install -U 'torch>=2.6'"
