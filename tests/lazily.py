"""Packages that a test module needs, without the time that it takes to import them where the module is only collected.

Invariant: a module whose package is not installed is skipped, with the reason, as by `pytest.importorskip`.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.util import find_spec
from typing import Any

import pytest


def needs(name: str, reason: str) -> None:
    """For modules and tests that leave the package to other processes, or to a later import."""
    if find_spec(name) is None:
        pytest.skip(reason, allow_module_level=True)


class Lazily:
    """The package, imported when the first of its attributes is asked for."""

    def __init__(self, name: str, reason: str) -> None:
        needs(name, reason)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") and attribute != "__version__":
            # pytest reads such attributes of every name of a module, to find fixtures.
            raise AttributeError(attribute)
        with warnings.catch_warnings():  # as importorskip does: what is not ours may warn
            warnings.simplefilter("ignore")
            package = importlib.import_module(self._name)
        return getattr(package, attribute)
