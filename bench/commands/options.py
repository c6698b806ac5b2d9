"""Options that several commands have.

Invariant: if a value is refused, the error message names the refused value and says what is valid.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import click

from collectives.bench import sizes
from collectives.bench.report import Screen
from collectives.commands.addresses import ADDRESSES
from collectives.commands.output import colourful

addresses_option = click.option(
    "--addresses",
    type=click.Choice(ADDRESSES),
    default="random",
    show_default=True,
    help="As in `collectives run`, for ranks of all systems.",
)
launches_option = click.option(
    "--launches",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="How often all processes start.",
)


def names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return all names that the user has given with a repeatable command-line option, without duplicates.

    Each value of the option may have several names, separated by commas.
    """
    return tuple(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))


def positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter(f"{value:g} is not a positive, finite number of seconds")
    return value


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse the value of a command-line option that is a size, such as "64K"; return it in bytes."""
    try:
        return None if value is None else sizes.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse the value of a command-line option that is a list of numbers of ranks, separated by commas.

    Return the numbers in ascending order.
    """
    try:
        found = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not numbers joined by commas") from None
    if not 2 <= found[0] <= found[-1] <= 64:
        raise click.BadParameter("2 to 64 ranks can be measured")
    return found


def writable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the value of a command-line option that is the name of a file to write; return its absolute path.

    Raises: click.BadParameter if the file cannot be written.
    """
    if value is not None:
        path = Path(value).absolute()
        if path.is_dir() or not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise click.BadParameter(f"{value} cannot be written")
        return str(path)
    return None


def screen() -> Screen:
    """Return the settings for printing: colours if standard output can show them, progress if standard error can."""
    return Screen(colourful(1), sys.stderr.isatty())


def say(text: str) -> None:
    """Print `text`, which tells the user about a step that takes long, to the standard error."""
    click.echo(f"collectives bench: {text}", err=True)
