"""The loop over rendezvous stores, for commands that measure one store after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import click
from redis.exceptions import RedisError

from collectives.bench.commands.options import names
from collectives.bench.rank_threads import OWN, Place, place, usual
from collectives.bench.report import Progress
from collectives.native.errors import CollectiveError

T = TypeVar("T")

store_option = click.option(
    "--store",
    "stores",
    multiple=True,
    callback=names,
    metavar="STORES",
    help=f"{', '.join(OWN)}, or redis://host.  [default: {', '.join(OWN)}, and $COLLECTIVES_STORE if it is Redis]",
)


def each(stores: tuple[str, ...], progress: Progress, measure: Callable[[Place], T]) -> Iterator[T | None]:
    """Call `measure` for each rendezvous store in `stores`, and yield its result.

    If `measure` fails, print the error and yield None. Raises: click.BadParameter for an unknown store.
    """
    for name in stores or usual():
        found = None
        try:
            with place(name) as where:
                found = measure(where)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--store'") from error
        except (CollectiveError, RedisError, OSError) as error:
            progress.clear()
            click.echo(f"collectives bench: {type(error).__name__}: {error}", err=True)
        progress.clear()
        yield found
