"""The example of a link in another package, built and installed as its user would do it, once for all tests.

Invariant: the compiler sees installed headers and the example's own files, nothing of our source tree.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import collectives

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugins" / "link_vm_write"


def installed(factory: pytest.TempPathFactory) -> Path:
    """The folder that is to be on sys.path of ranks. Built by the first of the test processes that asks."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    site = shared / "vm-write"
    with (shared / "vm-write.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            made = shared / "vm-write.made"
            made.mkdir()
            _build(made)
            made.rename(site)
    return site


def _build(site: Path) -> None:
    copy = site / "source"
    shutil.copytree(EXAMPLE, copy)
    package = site / "link_vm_write"
    shutil.copytree(copy / "link_vm_write", package)
    include = collectives.get_include()
    compiler = os.environ.get("CXX", "c++")
    options = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-isystem", include]
    sources = sorted(map(str, (copy / "src").glob("*.cpp")))
    command = [compiler, *options, "-shared", "-o", str(package / "_link.so"), *sources]
    tree = str(EXAMPLE.parents[2])
    installed = [word for word in command if word != include]
    assert not [word for word in installed if tree in word], command
    assert not Path(include).resolve().is_relative_to(Path(tree) / "native")
    subprocess.run(command, check=True, cwd=copy, env={**os.environ, "CPATH": "", "CPLUS_INCLUDE_PATH": ""})
    info = site / "pycollectives_link_vm_write-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pycollectives-link-vm-write\nVersion: 1.0\n")
    text = (EXAMPLE / "pyproject.toml").read_text()
    _, _, points = text.partition('[project.entry-points."pycollectives.transports"]\n')
    (info / "entry_points.txt").write_text(
        f"[pycollectives.transports]\n{points.partition(chr(10))[0]}\n".replace('"', "")
    )
