"""Imports the user's modules that register algorithms.

Invariant: a module is found as by `python -m`: Python searches the current folder first.
"""

from __future__ import annotations

import importlib
import sys

import click


def load(module: str) -> None:
    """Imports the user's Python module, which registers algorithms of its own when it is imported.

    If the import fails, raises ClickException with the text of the error.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except Exception as error:  # the user's code may raise any error
        raise click.ClickException(f"cannot import {module}: {type(error).__name__}: {error}") from error
