"""Modules of the user that register algorithms.

Invariant: the modules are found as with `python -m`, first in the folder in which the command was started.
"""

from __future__ import annotations

import importlib
import sys

import click


def load(module: str) -> None:
    """Import `module`; ClickException, with the error, if that fails."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except Exception as error:  # the user's code may raise any error
        raise click.ClickException(f"cannot import {module}: {type(error).__name__}: {error}") from error
