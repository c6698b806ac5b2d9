"""`python -m collectives.bench.wire`: times allreduce on a slow network, compared with the least time it could take.

Invariant: the hosts are network namespaces of this machine, and their links are so slow that the processor does not
limit the speed. The least time, called *bound*, is 2(h-1)/h * n / rate seconds for h hosts and arrays of n bytes; rate
is the nominal rate of all links of a host together, in bytes a second. Headers are not counted: with packets of 1500
bytes, data gets at most 95.6 % of the rate. All algorithms, each with each number of sockets, take turns, so that
changes of the machine's speed affect all of them. With `--limits`, plain sockets take turns with the algorithms: each
host sends as many bytes to the next host as an allreduce has to send, but nothing is reduced. With `--formats`, calls
that send in fewer bytes take turns, too; their bound is that of float32.
"""

from __future__ import annotations

import json
import secrets
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Final

import click

from collectives.bench import sizes
from collectives.bench.namespaces import bonded_hosts, hosts, run_ranks, set_kernel, why_not
from collectives.schedule.table import MOST_SOCKETS

ALGORITHMS: Final = ("ring", "halving_doubling", "circulant", "star")
FORMATS: Final = ("float32", "bf16", "fp16", "fp8", "int8")
_UNITS: Final = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def rate(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, float]:
    """Parse the value of a command-line option that is a bit rate, such as "200mbit".

    Return the rate as text in the notation of the program tc, and in bytes per second.
    """
    return _rate(value.lower())


def rates(ctx: click.Context, param: click.Parameter, value: str) -> list[tuple[str, float]]:
    """Parse the value of a command-line option that is a list of bit rates, separated by commas.

    Return each rate as text in the notation of the program tc, and in bytes per second.
    """
    return [_rate(text.strip()) for text in value.lower().split(",")]


def _rate(text: str) -> tuple[str, float]:
    for unit, bits in _UNITS.items():
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return text, float(number) * bits / 8
    raise click.BadParameter(f"{text!r} is no rate, such as 1gbit or 200mbit")


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        return [sizes.parse(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _formats(ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    names = [part.strip() for part in value.split(",")]
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(FORMATS)}")
    return names


def _sockets(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    counts = [int(part) if part.strip().isdecimal() else 0 for part in value.split(",")]
    if not all(1 <= count <= MOST_SOCKETS for count in counts):
        raise click.BadParameter(f"{value!r} is no list of numbers from 1 to {MOST_SOCKETS}")
    return counts


@click.command("wire")
@click.option("--hosts", "count", type=click.IntRange(2, 64), default=4, show_default=True, metavar="H")
@click.option("--ranks-per-host", "each", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N")
@click.option(
    "--rate",
    "limits",
    callback=rates,
    default="1gbit",
    show_default=True,
    metavar="RATE,…",
    help="Of each link of a host, in each direction. A connection uses one link.",
)
@click.option(
    "--sockets", callback=_sockets, default="1", show_default=True, metavar="N,…", help="Connections between two ranks."
)
@click.option("-b", "--bytes", "nbytes", callback=_sizes, default="16M,64M", show_default=True, metavar="SIZE,…")
@click.option("--algorithms", default=",".join(ALGORITHMS), show_default=True, metavar="NAME,…")
@click.option(
    "--formats",
    callback=_formats,
    default="float32",
    show_default=True,
    metavar="NAME,…",
    help=f"In which float32 arrays are sent: {', '.join(FORMATS)}.",
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, metavar="N")
@click.option("--limits", "with_limits", is_flag=True, help="Also measure plain sockets round the hosts.")
@click.option("--sysctl", "settings", multiple=True, metavar="NAME=VALUE", help="A kernel parameter of every host.")
@click.option("--json", "as_json", is_flag=True, help="Print all times instead of a table.")
def main(
    count: int,
    each: int,
    limits: list[tuple[str, float]],
    sockets: list[int],
    nbytes: list[int],
    algorithms: str,
    formats: list[str],
    repeats: int,
    with_limits: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the time of float32 allreduces between hosts on slow links, and the bytes that each host sends.

    The hosts are network namespaces of this machine. The command needs root and the programs ip and tc.
    """
    texts, bandwidth = [text for text, _ in limits], sum(each for _, each in limits)
    if with_limits and len(texts) > 1:
        raise click.UsageError("--limits is for one link a host: a plain socket uses one")
    reason = why_not(texts[0])
    if reason is not None:
        raise click.ClickException(reason)
    names = [name.strip() for name in algorithms.split(",")]
    needed = [2 * (count - 1) * size // count for size in nbytes]  # the fewest bytes that can leave each host
    plan: dict[str, Any] = {
        "sizes": nbytes,
        "algorithms": names,
        "sockets": sockets,
        "formats": formats,
        "repeats": repeats,
        "limits": needed if with_limits else [],
    }
    contestants = len(names) * len(sockets) * len(formats) + with_limits
    longest = sum(2 * count * each * n / bandwidth for n in nbytes) * contestants * (repeats + 1)
    environment = {"COLLECTIVES_INTERFACE": "bond"} if len(texts) > 1 else {}
    with bonded_hosts(count, texts) if environment else hosts(count, rates=texts) as made:
        try:
            for host, setting in product(made, settings):
                set_kernel(host, setting)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--sysctl'") from None
        placement = [host for host in made for _ in range(each)]
        plan["addresses"] = [next(iter(host.addresses.values())) for host in placement]
        arguments = ("-m", "collectives.bench.wire_rank", json.dumps(plan))
        try:
            secret, timeout = secrets.token_bytes(32), 60 + 2 * longest
            ended = run_ranks(placement, *arguments, secret=secret, timeout=timeout, environment=environment)
        except subprocess.TimeoutExpired as error:
            raise click.ClickException(f"the ranks have not ended after {error.timeout:.0f} s") from None
    for rank, end in enumerate(ended):
        if end.code != 0:
            raise click.ClickException(f"rank {rank} ended with code {end.code}\n{end.err.strip()}")
    found = [json.loads(end.out) for end in ended]
    if as_json:
        click.echo(json.dumps({**plan, "hosts": count, "ranks_per_host": each, "rates": texts, "ranks": found}))
        return
    ranks = f"{each} rank{'s' * (each > 1)}"
    click.echo(f"allreduce, float32 sum, {count} hosts with {ranks} on links of {' + '.join(texts)} each way")
    click.echo("time: median of the slowest rank's; sent: what leaves the host that sends most, headers and all")
    click.echo(f"\n{'bytes':>10}  {'algorithm':24}{'sockets':>7}{'ms':>9}{'of bound':>10}{'sent, of n':>12}")
    for at, (size, name, links, sent_as) in enumerate(product(nbytes, names, sockets, formats)):
        seconds = _slowest(rank["cases"][at]["seconds"] for rank in found)
        bound = 2 * (count - 1) / count * size / bandwidth
        sent = max(rank["cases"][at]["sent"] for rank in found) / size
        label = name if sent_as == FORMATS[0] else f"{name} {sent_as}"
        click.echo(f"{_row(size, label, links, seconds, bound)}{sent:12.3f}")
    for at, leaving in enumerate(plan["limits"]):
        seconds = _slowest(rank["limits"][at] for rank in found)
        click.echo(_row(nbytes[at], "(plain sockets)", 1, seconds, leaving / bandwidth))


def _row(size: int, name: str, links: int, seconds: float, bound: float) -> str:
    return f"{size:10}  {name:24}{links:7}{seconds * 1e3:9.2f}{bound / seconds:10.1%}"


def _slowest(ranks: Iterable[Sequence[float]]) -> float:
    """The median time of a call, where the time of each call is the slowest rank's; `ranks`: each rank's times."""
    return statistics.median(max(call) for call in zip(*ranks, strict=True))


if __name__ == "__main__":
    main()
