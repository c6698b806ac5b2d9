"""The doctor's section on frameworks: which are installed, and how their tensors reach the library.

Invariant: no framework is imported, since an import takes seconds; versions come from the metadata of
installed packages.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple

from collectives.commands.checks import Problem, Section


class Framework(NamedTuple):
    """A machine learning framework that the report of `collectives doctor` looks for.

    `module`: its Python module. `distributions`: the packages that may contain it. `oldest`: the oldest supported
    version.
    """

    module: str
    distributions: tuple[str, ...]
    oldest: tuple[int, int]


_FRAMEWORKS: Final = (
    Framework("torch", ("torch",), (2, 6)),
    Framework("tensorflow", ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-rocm"), (2, 16)),
    Framework("jax", ("jax",), (0, 6)),
    Framework("keras", ("keras", "keras-nightly"), (3, 3)),
)
_REACHED: Final = {
    "torch": "tensors' own memory, by the backend 'collectives' of torch.distributed and by collectives.torch",
    "tensorflow": "tensors' own memory; in graphs by tf.numpy_function, so not where XLA compiles them",
}
_WAYS: Final = ("auto", "ffi", "io_callback")  # values of COLLECTIVES_JAX


def section(env: Mapping[str, str], home: Path | None = None) -> Section:
    """The part of the report of `collectives doctor` about machine learning frameworks, such as PyTorch.

    `home`: the directory with Keras's settings, .keras; None for the user's home.
    """
    facts: dict[str, Any] = {}
    problems: list[Problem] = []
    for framework in _FRAMEWORKS:
        found = _version(framework)
        if found is None:
            facts[framework.module] = "not installed"
            continue
        if framework.module == "jax":
            how, problem = _jax(env)
            problems += [problem] if problem else []
        elif framework.module == "keras":
            how = _keras(env, Path.home() if home is None else home)
        else:
            how = _REACHED[framework.module]
        facts[framework.module] = f"{found}: {how}"
        if _older(found, framework.oldest):
            oldest = ".".join(map(str, framework.oldest))
            text = (
                f"{framework.module} {found} is older than {oldest}, with which collectives.{framework.module} begins"
            )
            problems.append(Problem("hint", text, f"pip install -U '{framework.distributions[0]}>={oldest}'"))
    return Section("frameworks", facts, problems)


def _version(framework: Framework) -> str | None:
    if importlib.util.find_spec(framework.module) is None:
        return None
    for name in framework.distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def _older(found: str, oldest: tuple[int, int]) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", found)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest


def _jax(env: Mapping[str, str]) -> tuple[str, Problem | None]:
    wanted = env.get("COLLECTIVES_JAX", "auto")
    slowly = "copies, by JAX's io_callback"
    if wanted not in _WAYS:
        text = f"COLLECTIVES_JAX={wanted}: it has to be {', '.join(_WAYS)}"
        return "none", Problem("broken", text, "correct the variable, or unset it")
    if wanted == "io_callback":
        return f"{slowly}, as COLLECTIVES_JAX says", None
    try:
        importlib.import_module("collectives.native._xla")
    except ImportError as error:
        advice = "install pycollectives again, with a C++ compiler at hand"
        severity = "broken" if wanted == "ffi" else "hint"
        text = f"compiled JAX functions have no fast path, as native/_xla cannot be imported ({error})"
        return slowly, Problem(severity, text, advice)  # type: ignore[arg-type]
    return "arrays' own memory, by XLA's foreign function interface (ffi)", None


def _keras(env: Mapping[str, str], home: Path) -> str:
    """The backend that Keras will use, from the environment or from Keras's settings."""
    backend = env.get("KERAS_BACKEND")
    if not backend:
        folder = Path(env["KERAS_HOME"]) if env.get("KERAS_HOME") else home / ".keras"
        try:
            backend = json.loads((folder / "keras.json").read_text()).get("backend")
        except (OSError, ValueError, AttributeError):
            backend = None
    return f"as its backend, {backend or 'tensorflow'}"
