"""Ranks in namespaces import nothing: they are forked (`tests/warm/parents.py`), and join their host's namespaces."""

from __future__ import annotations

import sys

import pytest

from tests.warm.parents import python


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python())
