"""`collectives run`: start the ranks of a job on this host.

Invariant: all errors in the command line are reported before anything is started.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from collectives.commands.addresses import ADDRESSES
from collectives.commands.child import StartError
from collectives.commands.launcher import GRACE, PER_RANK, Job, chooses_threads, launch
from collectives.native.errors import AuthError, TransportUnavailable
from collectives.rendezvous import secret
from collectives.rendezvous.store import SCHEMES
from collectives.transports import registry

HOSTS = ("nnodes", "node_rank", "secret_file", "run_id")
STORES = tuple(scheme for scheme in SCHEMES if scheme not in ("memory", "mpi"))  # without those for one process or MPI


def _seconds(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter(f"{value:g} is not a positive, finite number of seconds")
    return value


def _environment(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    chosen = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE")
        if key in PER_RANK:
            raise click.BadParameter(f"{key} is set by the launcher itself")
        chosen[key] = text
    return chosen


def _store(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    if value and urlsplit(value).scheme not in STORES:
        kinds = ", ".join(f"{scheme}://" for scheme in STORES)
        raise click.BadParameter(f"{value!r}: the ranks can meet at {kinds}")
    return value or ""


def _transport(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value and value != "auto":
        try:
            registry.check(value)
        except (ValueError, TransportUnavailable) as error:
            raise click.BadParameter(str(error)) from None
    return value


def _secret(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    if not value:
        return ""
    try:
        secret.read(value)
    except AuthError as error:
        raise click.BadParameter(str(error)) from None
    return os.path.abspath(value)


class _Command(click.Command):
    """A command whose --help shows the options for several hosts in a section of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Several hosts": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections["Several hosts" if param.name in HOSTS else "Options"].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


@click.command("run", cls=_Command, context_settings={"allow_interspersed_args": False})
@click.option(
    "-n", "-np", "--ranks", type=click.IntRange(min=1), required=True, metavar="N", help="Ranks to start here."
)
@click.option("-m", "--module", is_flag=True, help="PROGRAM is a Python module, as in python -m.")
@click.option("--name", envvar="COLLECTIVES_NAME", default="default", show_default=True, help="The group's name.")
@click.option(
    "--store",
    envvar="COLLECTIVES_STORE",
    callback=_store,
    metavar="URL",
    help="Where the ranks meet: redis://host, tcp://host:port, file:///dir.  [default: a private directory]",
)
@click.option(
    "--transport",
    envvar="COLLECTIVES_TRANSPORT",
    callback=_transport,
    metavar="NAME",
    help="How they talk: auto, shm, tcp, ...  [default: the program's choice]",
)
@click.option(
    "--timeout",
    envvar="COLLECTIVES_TIMEOUT",
    type=float,
    callback=_seconds,
    metavar="SECONDS",
    help="How long an operation may take.  [default: the program's choice]",
)
@click.option(
    "--env",
    "environment",
    multiple=True,
    callback=_environment,
    metavar="NAME=VALUE",
    help="Set a variable in every rank's environment; may be repeated.",
)
@click.option("--bind", is_flag=True, help="Give each rank cores of its own.")
@click.option(
    "--addresses",
    type=click.Choice(ADDRESSES),
    default="random",
    show_default=True,
    help="Of code and data: random, as the kernel has them, or the same in all ranks, which is faster where they share "
    "cores and makes attacks easier.",
)
@click.option(
    "--grace",
    type=float,
    callback=_seconds,
    metavar="SECONDS",
    default=GRACE,
    show_default=True,
    help="How long ranks may go on after one failed.",
)
@click.option("--no-prefix", is_flag=True, help="Do not mark output lines with the rank.")
@click.option("--nnodes", type=click.IntRange(min=1), default=1, metavar="M", help="Hosts that run this command.")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, metavar="I", help="Which of them this is, from 0.")
@click.option(
    "--secret-file",
    callback=_secret,
    metavar="FILE",
    help="The secret that all hosts share, mode 0600.  [default: made for this run]",
)
@click.option("--run-id", metavar="ID", help="What the hosts call this run.  [default: made for this run]")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
def command(
    ranks: int,
    module: bool,
    name: str,
    store: str,
    transport: str | None,
    timeout: float | None,
    environment: dict[str, str],
    bind: bool,
    addresses: str,
    grace: float,
    no_prefix: bool,
    nnodes: int,
    node_rank: int,
    secret_file: str,
    run_id: str | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM in N processes that find each other.

    PROGRAM is a Python script, a module (-m), or anything that can be executed. In it, collectives.init()
    needs no arguments. Each line of output is marked with its rank. Rank 0 reads the standard input. Signals
    go to all ranks. When a rank fails, the others have --grace seconds to end by themselves; the exit status
    is that of the first rank that failed.

    \b
      collectives run -n 4 train.py --epochs 3
      collectives run -n 4 -m package.train
      collectives run -n 2 --transport tcp -- python -i session.py

    On several hosts, run the command on each, with the same secret, run id and store:

    \b
      collectives run --nnodes 2 --node-rank 0 --store tcp://first-host:7000 \\
          --secret-file job.key --run-id $JOB_ID -n 8 train.py
    """
    if nnodes > 1:
        _need_in_common({"--store": store, "--secret-file": secret_file, "--run-id": run_id})
        if store.startswith("tcp:") and not urlsplit(store).port:
            raise click.BadParameter(f"{store!r} names no port", param_hint="'--store'")
    if node_rank >= nnodes:
        raise click.BadParameter(
            f"{node_rank} is not one of {nnodes} hosts, counted from 0", param_hint="'--node-rank'"
        )
    if bind and ranks > (cores := len(os.sched_getaffinity(0))):
        raise click.UsageError(f"--bind: {ranks} ranks cannot have cores of their own, there are {cores}")
    if transport:
        environment["COLLECTIVES_TRANSPORT"] = transport
    if timeout:
        environment["COLLECTIVES_TIMEOUT"] = repr(timeout)
    job = Job(
        command=_command_line(program, module),
        ranks=ranks,
        first=node_rank * ranks,
        size=nnodes * ranks,
        name=name,
        store=store,
        run_id=run_id or "",
        secret_file=secret_file,
        environment=environment,
        prefix=not no_prefix,
        bind=bind,
        addresses=addresses,
        grace=grace,
    )
    if chooses_threads(job) and not bind:
        click.echo("collectives: OMP_NUM_THREADS=1 in each rank; set it to choose otherwise", err=True)
    try:
        outcome = launch(job)
    except (StartError, OSError) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(outcome.status)


def _need_in_common(options: dict[str, str | None]) -> None:
    if missing := [option for option, value in options.items() if not value]:
        raise click.UsageError(
            f"--nnodes: every host needs the same {', '.join(missing)}.\n"
            "A secret is made by: (umask 077; head -c 32 /dev/urandom > job.key)"
        )


def _command_line(program: tuple[str, ...], module: bool) -> list[str]:
    """The command line of a rank: Python with a script or module, or another program by its path as found in PATH."""
    first, *rest = program
    if module:
        return [sys.executable, "-m", *program]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise click.BadParameter(f"there is no file {first}", param_hint="'PROGRAM'")
        return [sys.executable, *program]
    if (found := shutil.which(first)) is None:
        why = "is not executable" if Path(first).is_file() else "is neither a file nor a command"
        raise click.BadParameter(f"{first} {why}", param_hint="'PROGRAM'")
    return [found, *rest]
