"""`collectives bench overlap`: compares gradient exchange in buckets with one fused call, on a slow network.

Invariant: all errors in the command line, and missing tools, are reported before a process is started.
"""

from __future__ import annotations

import sys
from statistics import median
from subprocess import SubprocessError

import click
from rich.text import Text

from collectives.bench import sizes
from collectives.bench.commands.options import screen, size, writable
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.namespaces import why_not
from collectives.bench.overlap import BAR, WAYS, Overlap, Setting, measure
from collectives.bench.peers.here import missing
from collectives.bench.report import Progress
from collectives.bench.wire import rate as rate_of


@click.command("overlap")
@click.option(
    "--rate", callback=rate_of, default="1gbit", show_default=True, help="Rate of the link in each direction."
)
@click.option("--layers", type=click.IntRange(min=2), default=8, show_default=True, metavar="N")
@click.option(
    "--width", type=click.IntRange(min=16), default=768, show_default=True, metavar="N", help="Width of a layer."
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=512, show_default=True, metavar="N", help="Samples of a rank."
)
@click.option("--bucket", callback=size, default="4M", show_default=True, metavar="SIZE")
@click.option(
    "--steps", type=click.IntRange(min=1), default=15, show_default=True, metavar="N", help="Steps in each mode."
)
@click.option("--json", metavar="FILE", callback=writable, help="Write every step of every rank.")
@click.option("--strict", is_flag=True, help="Exit with code 1 if the target is missed.")
def command(
    rate: tuple[str, float],
    layers: int,
    width: int,
    batch: int,
    bucket: int,
    steps: int,
    json: str | None,
    strict: bool,
) -> None:
    """Measure training steps in TensorFlow in three modes: gradients are summed in buckets, in one call, or not at all.

    Two ranks train a network of dense layers. Each rank is in a network namespace of its own, and the link between the
    namespaces has a limited bit rate. The allreduce of a bucket starts as soon as its gradients are computed, while
    other gradients are still being computed. The start and the end of each allreduce are recorded. The three modes take
    turns, step by step.

    The command needs root, the programs ip and tc, and TensorFlow. The exit code is 3 if a rank failed.
    """
    if (reason := missing("tensorflow") or why_not(rate[0])) is not None:
        raise click.ClickException(reason)
    setting = Setting(rate[0], layers, width, batch, bucket, steps)
    progress = Progress(screen().progress)
    progress.show(f"2 ranks train, {steps} steps in each of {len(WAYS)} ways")
    try:
        found = measure(setting, rate[1])
    except (RuntimeError, SubprocessError, OSError) as error:
        progress.clear()
        click.echo(f"collectives bench overlap: {error}", err=True)
        sys.exit(FAILED)
    progress.clear()
    _print(found)
    if json is not None:
        write(json, {"format": f"{FORMAT} overlap", "version": VERSION, **found.to_json()})
    sys.exit(REFUTED if strict and not found.passed else 0)


def _print(found: Overlap) -> None:
    console, setting = screen().console(), found.setting

    def show(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    show(f"# 2 hosts on a link of {setting.rate}; {setting.layers} layers, {setting.width} wide, batch {setting.batch}")
    show(f"# {sizes.text(setting.nbytes)} of gradients, buckets of {sizes.text(setting.bucket)}, {setting.steps} steps")
    show(f"# {'exchange':<10} {'step (ms)':>10} {'min':>10} {'max':>10}", "bold")
    for way in WAYS:
        times = [1e3 * seconds for seconds in found.times(way)]
        show(f"  {way:<10} {median(times):>10.1f} {min(times):>10.1f} {max(times):>10.1f}")
    last = [step for step in found.ranks[0] if step.way == "bucketed"][-1]
    show("# rank 0's last step in buckets, ms from its beginning:")
    for bucket in last.buckets:
        show(f"#   bucket {bucket.number}: on the wire from {1e3 * bucket.started:.1f} to {1e3 * bucket.finished:.1f}")
    show(f"#   backpropagation ended at {1e3 * last.backward:.1f}")
    leads = [1e3 * seconds for seconds in found.leads]
    show(
        "# first bucket on the wire before backpropagation ended, on every rank: "
        f"{sum(lead > 0 for lead in leads)} of {len(leads)} steps, by {median(leads):.1f} ms (least {min(leads):.1f})"
    )
    verdict, style = ("pass", "green") if found.passed else ("FAIL", "bold red")
    show(
        f"# buckets save {found.gain:.1%} of the fused step; bar {BAR:.0%}, with the first bucket ahead: {verdict}",
        style,
    )
