"""Types and checks of command-line options that several commands share.

Invariant: an error names the invalid value and says what is valid, and is raised before the command does anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collectives.base.plotting import FORMATS, MISSING, available
from collectives.native.spelling import hint

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice


class Names(_Choice):
    """The type of a command-line option whose value is one of several names; an error suggests similar names."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise click.BadParameter(f"{error.message}{hint(value, self.choices)}", ctx, param) from None


def picture(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Checks a command-line option that is the path of a picture, and returns the path.

    Raises BadParameter if no picture can be drawn into this file, for example because of its suffix.
    """
    if value is not None:
        if value.suffix not in FORMATS:
            raise click.BadParameter(f"{str(value)!r} must end in {', '.join(FORMATS)}")
        if not available():
            raise click.BadParameter(MISSING)
    return writable(ctx, param, value)


def writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and (value.is_dir() or not os.access(value.absolute().parent, os.W_OK)):
        raise click.BadParameter(f"{value} cannot be written")
    return value
