"""`collectives bench`: measures collectives, on the ranks of a running job or on ranks that it starts.

Invariant: all errors in the command line are reported before anything is started or installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import click

from collectives.base.plotting import FORMATS, MISSING, available
from collectives.bench import device as devices
from collectives.bench import memory, sizes
from collectives.bench.cases import IN_PLACE, KINDS, OUT_OF_PLACE
from collectives.bench.commands.options import addresses_option, names, positive, say, screen, size, writable
from collectives.bench.device_limits import OF_DEVICES
from collectives.bench.exits import FAILED
from collectives.bench.hosts import memory as machine_memory
from collectives.bench.limits import OF_MEMORY, OF_SOCKETS
from collectives.bench.peers import NAMES as PEERS
from collectives.bench.peers import ON_DEVICES, peer
from collectives.bench.peers.environment import CannotInstall, python_for
from collectives.bench.plan import ALIASES, PeerPlan, Plan, cases, load, memory_needed
from collectives.bench.rank import guarded
from collectives.bench.report import Screen
from collectives.bench.start import start
from collectives.bench.traces import TRACES
from collectives.commands.child import StartError
from collectives.commands.options import Names
from collectives.commands.run import STORES
from collectives.core.init import check_segment
from collectives.native.errors import CollectiveError
from collectives.native.spelling import hint
from collectives.rendezvous.bootstrap import bootstrap
from collectives.rendezvous.store import SCHEMES
from collectives.transports import registry

RANKS = 2
BUCKET = 25 << 20
ROUNDS = 5  # default if other systems or floors are measured, too
BUDGET, BESIDE = 0.2, 0.5  # seconds of a figure, for all rounds: alone, and beside other systems or floors


def _segment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    parsed = size(ctx, param, value)
    try:
        return None if parsed is None else check_segment(parsed)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _store(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value and urlsplit(value).scheme not in SCHEMES:
        raise click.BadParameter(f"{value!r}: the ranks can meet at {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    return value or None


def _peers(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    wanted = names(ctx, param, values)
    for name in wanted:
        try:
            peer(name)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return wanted


def _picture(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        if not value.endswith(FORMATS):
            raise click.BadParameter(f"{value}: its name has to end in {', '.join(FORMATS)}")
        if not available():
            raise click.BadParameter(MISSING)
    return writable(ctx, param, value)


def _traces(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    wanted = names(ctx, param, values)
    for name in wanted:
        if name not in TRACES:
            raise click.BadParameter(f"there is no trace {name!r}{hint(name, TRACES)}; there are {', '.join(TRACES)}")
    return wanted


@click.command("bench")
@click.argument("collective", default="allreduce", type=Names([*KINDS, "all"]), metavar="[COLLECTIVE]")
@click.option(
    "-n", "-np", "--ranks", type=click.IntRange(min=1), metavar="N", help=f"Ranks to start here.  [default: {RANKS}]"
)
@click.option("-b", "--minbytes", callback=size, metavar="SIZE", help="Smallest size.  [default: 8]")
@click.option("-e", "--maxbytes", callback=size, metavar="SIZE", help="Largest size.  [default: 64M]")
@click.option("-f", "--stepfactor", type=float, metavar="FACTOR", help="Factor between sizes.  [default: 2]")
@click.option("-i", "--stepbytes", callback=size, metavar="SIZE", help="Step between sizes, instead of a factor.")
@click.option(
    "-d", "--datatype", multiple=True, callback=names, metavar="NAMES", help="float32, bfloat16, ..., or all."
)
@click.option(
    "-o", "--op", multiple=True, callback=names, metavar="NAMES", help="sum, max, ..., or all that there are."
)
@click.option(
    "-r", "--root", type=click.IntRange(min=0), default=0, show_default=True, metavar="RANK", help="Root of the call."
)
@click.option(
    "-w",
    "--warmup",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    metavar="N",
    help="Calls before the clock.",
)
@click.option(
    "--iters", type=click.IntRange(min=1), metavar="N", help="Iterations.  [default: as many as --budget allows]"
)
@click.option(
    "--budget",
    type=float,
    callback=positive,
    metavar="SECONDS",
    help=f"Time for each figure.  [default: {BUDGET}; with --peers or --limits {BESIDE}]",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Turns of each system.  [default: 1; with --peers or --limits {ROUNDS}]",
)
@click.option(
    "-c", "--check", type=click.Choice(["0", "1"]), default="1", show_default=True, help="Verify every element."
)
@click.option(
    "--in-place/--out-of-place", "in_place", default=None, help="Only this form of the call.  [default: both]"
)
@click.option(
    "--device",
    type=click.Choice(devices.NAMES),
    default="cpu",
    show_default=True,
    help="Where the arrays are: in host memory, or CuPy's arrays on CUDA devices.",
)
@click.option(
    "--buffers",
    type=click.Choice(["plain", "shared"]),
    default="plain",
    show_default=True,
    help="Ordinary arrays, or arrays of comm.empty.",
)
@click.option(
    "--renew",
    is_flag=True,
    help="Write the input before each call, outside the timed part, so that it is in the core's cache.",
)
@click.option(
    "--row",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Calls in a row, without barriers between them: the time is their mean.",
)
@click.option("--algorithm", default="auto", show_default=True, metavar="NAME", help="auto, all, or an algorithm.")
@click.option(
    "--import",
    "modules",
    multiple=True,
    callback=names,
    metavar="MODULES",
    help="Register your algorithms: modules to import.",
)
@click.option("--transport", envvar="COLLECTIVES_TRANSPORT", metavar="NAME", help="auto, shm, tcp, ...")
@click.option(
    "--segment",
    envvar="COLLECTIVES_SEGMENT",
    callback=_segment,
    metavar="SIZE",
    help="Bytes staged, copied or reduced at a time.",
)
@click.option(
    "--store",
    envvar="COLLECTIVES_STORE",
    callback=_store,
    metavar="URL",
    help="Where the ranks meet.  [default: a private directory]",
)
@click.option("--bind", is_flag=True, help="Give each rank that is started here cores of its own.")
@addresses_option
@click.option(
    "--timeout",
    type=float,
    callback=positive,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Timeout of one operation.",
)
@click.option("--json", metavar="FILE", callback=writable, help="Write everything, raw samples included.")
@click.option("--plot", metavar="FILE", callback=_picture, help="Draw time and bus bandwidth: .svg, .png or .pdf.")
@click.option(
    "--peers",
    multiple=True,
    callback=_peers,
    metavar="NAMES",
    help=f"Other systems to measure in turns: {', '.join(PEERS)}; with --device cuda {', '.join(ON_DEVICES)}.",
)
@click.option("--limits", is_flag=True, help="Also measure lower limits of this machine, and compare with them.")
@click.option(
    "--trace", "traces", multiple=True, callback=_traces, metavar="NAMES", help=f"Gradients of {', '.join(TRACES)}."
)
@click.option("--bucket", callback=size, metavar="SIZE", help="Size of buckets of gradients.  [default: 25M]")
@click.option("--memory", "in_memory", is_flag=True, help="Measure memory instead of time.")
def command(
    collective: str,
    ranks: int | None,
    minbytes: int | None,
    maxbytes: int | None,
    stepfactor: float | None,
    stepbytes: int | None,
    datatype: tuple[str, ...],
    op: tuple[str, ...],
    root: int,
    warmup: int,
    iters: int | None,
    budget: float | None,
    rounds: int | None,
    check: str,
    in_place: bool | None,
    device: str,
    buffers: str,
    renew: bool,
    row: int,
    algorithm: str,
    modules: tuple[str, ...],
    transport: str | None,
    segment: int | None,
    store: str | None,
    bind: bool,
    addresses: str,
    timeout: float,
    json: str | None,
    plot: str | None,
    peers: tuple[str, ...],
    limits: bool,
    traces: tuple[str, ...],
    bucket: int | None,
    in_memory: bool,
) -> None:
    """Measure COLLECTIVE (a name or "all") and check its results. Without COLLECTIVE, allreduce is measured.

    If you start it by hand, it runs N ranks on this machine. Under a launcher (collectives run, torchrun, mpirun,
    srun), the processes of the launcher are the ranks. The columns are those of nccl-tests:

    \b
      size   bytes of a rank's array; in collectives with one block for each
             rank (allgather, reduce_scatter, alltoall, gather, scatter), of
             the blocks of all ranks together
      count  elements of the array, or of one block
      time   microseconds on the slowest rank, without the barrier before
             each call: the median over all calls
      algbw  size / time, in GB/s
      busbw  algbw x 2(n-1)/n for allreduce on n ranks, x (n-1)/n for
             collectives with blocks, x 1 for broadcast and reduce
      #wrong number of wrong elements in the results of all ranks

    The exit code is 1 if any value is wrong, 2 for a wrong command line, 3 if the run failed.

    \b
      collectives bench -b 8 -e 64M -f 8
      collectives bench allgather -n 4 --transport tcp -d bfloat16
      collectives bench --algorithm all -b 1M -e 1M
      collectives bench --peers gloo --limits --json result.json
      collectives bench --trace resnet50 --peers gloo
      collectives bench --device cuda --peers nccl --limits
      collectives bench --memory -b 1G -n 4
    """
    try:
        launch = bootstrap(store=store)
    except (ValueError, CollectiveError) as error:
        raise click.UsageError(str(error)) from error
    own = launch.launcher == "none"
    if not own and ranks not in (None, launch.size):
        raise click.UsageError(f"-n {ranks}, but this job ({launch.launcher}) has {launch.size} ranks")
    size = launch.size if not own else ranks or (memory.RANKS if in_memory else RANKS)
    if not own and (peers or in_memory or bind):
        raise click.UsageError("--peers, --memory and --bind start ranks of their own: not inside a running job")
    if own and store and urlsplit(store).scheme not in STORES:
        raise click.UsageError(f"--store {store!r}: processes that are started here cannot meet there")
    if in_memory:
        if collective != "allreduce" or peers or limits or plot:
            raise click.UsageError("--memory is about allreduce and the library itself: it goes with no other figures")
        in_place = True
        minbytes = memory.SIZE if minbytes is maxbytes is None else minbytes
    if traces:
        if collective != "allreduce" or in_memory or {minbytes, maxbytes, stepfactor, stepbytes} != {None}:
            raise click.UsageError("--trace has sizes of its own, for allreduce: it goes with no others")
        in_place = True if in_place is None else in_place  # gradients are usually reduced in place
    elif bucket is not None:
        raise click.UsageError("--bucket is for --trace")
    if renew and row > 1:
        raise click.UsageError("--renew writes before each call, and --row makes calls without anything between them")
    on_cuda = device == "cuda"
    if wrong := [name for name in peers if (name in ON_DEVICES) != on_cuda]:
        raise click.UsageError(
            f"--peers {','.join(wrong)}: with --device cuda there are {', '.join(ON_DEVICES)}, without it "
            f"{', '.join(PEERS)}"
        )
    if on_cuda and (traces or in_memory):
        raise click.UsageError("--trace and --memory are about arrays in host memory: not with --device cuda")
    if on_cuda and collective == "barrier":
        raise click.UsageError("barrier has no arrays: measure it without --device cuda")
    if limits and transport == "verbs":
        raise click.UsageError("--limits: how fast RDMA devices are is measured by perftest: --peers perftest")
    alone = not peers and not limits
    every = tuple(name for name in KINDS if name != "barrier" or not on_cuda)
    plan = Plan(
        collectives=every if collective == "all" else (collective,),
        sizes=_series(minbytes, maxbytes, stepfactor, stepbytes),
        dtypes=tuple(ALIASES.get(name, name) for name in datatype) or ("float32",),
        ops=op or ("sum",),
        root=root,
        algorithm=algorithm,
        places=(OUT_OF_PLACE, IN_PLACE) if in_place is None else (IN_PLACE,) if in_place else (OUT_OF_PLACE,),
        device=device,
        buffers=buffers,
        renew=renew,
        row=row,
        warmup=warmup,
        iterations=iters,
        budget=budget or (BUDGET if alone else BESIDE),
        rounds=rounds or (1 if alone else ROUNDS),
        check=check == "1",
        timeout=timeout,
        addresses=addresses,
        transport=transport,
        segment=segment,
        modules=modules,
        limits=() if not limits else OF_DEVICES if on_cuda else OF_SOCKETS if transport == "tcp" else OF_MEMORY,
        traces=traces,
        bucket=BUCKET if bucket is None else bucket,
        json=json,
        plot=plot,
    )
    _check(plan, size, own, bind)
    here = screen()
    if on_cuda and own:
        try:
            devices.check()
        except CollectiveError as error:
            say(f"{type(error).__name__}: {error}")
            sys.exit(FAILED)
    if not own:
        sys.exit(guarded(plan, here, store))
    try:
        if in_memory:
            sys.exit(memory.report(plan, size, here))
        sys.exit(start(_with_peers(plan, peers, here), here, size, store or "", bind))
    except (StartError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _series(first: int | None, last: int | None, factor: float | None, step: int | None) -> tuple[int, ...]:
    if factor is not None and step is not None:
        raise click.UsageError("-f and -i: sizes grow by a factor or by a step, not by both")
    low = first if first is not None else min(8, last if last is not None else 8)
    high = last if last is not None else max(64 << 20, low)
    try:
        return tuple(sizes.series(low, high, factor, step))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check(plan: Plan, ranks: int, own: bool, bind: bool) -> None:
    """Raise UsageError if the plan cannot work."""
    try:
        load(plan.modules, os.getcwd())
        cases(plan, ranks)
        if plan.transport in devices.TRANSPORTS:
            if plan.device == "cpu":
                raise ValueError(f"--transport {plan.transport} is for arrays on devices: give --device cuda")
        elif plan.transport not in (None, "auto"):
            registry.transport(plan.transport)
    except (ValueError, CollectiveError) as error:
        raise click.UsageError(str(error)) from error
    if bind and ranks > (cores := len(os.sched_getaffinity(0))):
        raise click.UsageError(f"--bind: {ranks} ranks cannot have cores of their own, there are {cores}")
    needed, free = memory_needed(plan, ranks), machine_memory("MemAvailable")
    if own and free and needed > free and plan.device == "cpu":
        raise click.UsageError(
            f"{ranks} ranks need {needed / 2**30:.1f} GiB for their arrays, and {free / 2**30:.1f} are available: "
            "give a smaller size with -e, fewer ranks with -n, or one form of the call (--in-place)"
        )


def _with_peers(plan: Plan, wanted: Sequence[str], here: Screen) -> Plan:
    """Install the other systems (MPI libraries, Gloo, ...) in `wanted`, and return `plan` with them as its `peers`.

    Those on CUDA devices are not installed: they use the packages of this interpreter.
    """
    try:
        pythons = (sys.executable if plan.device == "cuda" else python_for(name, say, here.progress) for name in wanted)
        return replace(plan, peers=tuple(map(PeerPlan, wanted, pythons)))
    except CannotInstall as error:
        raise click.ClickException(str(error)) from error
