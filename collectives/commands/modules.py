"""Modules of the user's that register algorithms.

Invariant: they are found as `python -m` finds them, in the folder in which the command was started first.
"""

from __future__ import annotations

import importlib
import sys

import click


def load(module: str) -> None:
    """Import it; ClickException says what went wrong."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever the user's code raises
        raise click.ClickException(f"cannot import {module}: {type(error).__name__}: {error}") from error
