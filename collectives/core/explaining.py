"""Describes as text which algorithm, and which engine to run it, a communicator would choose for a call, and why.

Invariant: the choices come from the functions that calls use too, so the text always describes what would happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from collectives.algorithms import registry
from collectives.arrays.array import Dtype, check_number, name_of
from collectives.arrays.dtypes import engine_name
from collectives.arrays.wire import FLOAT32, Format, WireName
from collectives.calls import wired
from collectives.calls.formats import format_name
from collectives.calls.leading import ENGINE as LEADER
from collectives.calls.leading import LeaderCalls
from collectives.calls.nccl import ENGINE, HIERARCHY
from collectives.calls.prepare import Preparer, Shape
from collectives.calls.streamed import StreamCalls
from collectives.calls.wired import divide
from collectives.core.links import Linked
from collectives.native._engine import Group
from collectives.schedule.conditions import collective as contract
from collectives.schedule.layout import Layout
from collectives.schedule.select import Choice, ladder
from collectives.schedule.table import ANY_SIZE, WIRED, Row
from collectives.transports import registry as transports
from collectives.transports.leader import mps


def explain(
    prepare: Preparer,
    linked: Linked,
    collective: str,
    nbytes: int,
    dtype: Dtype,
    algorithm: str = "auto",
    on_devices: Sequence[str] = (),
    form: Format | None = None,
    because: Sequence[str] = (),
) -> str:
    """Returns a text about a collective on `nbytes` bytes: the algorithm and engine that it uses, and why.

    The text also lists this rank's steps. `linked`: the group of ranks. `algorithm`: as in calls, "auto" or a name.
    `on_devices`: lines to insert about arrays on devices. `form`: the wire format in which `nbytes` bytes of float32
    are sent; the text then describes one section of the array. `because`: lines to insert about the choice of the
    format. Raises ValueError for a negative size, and for an unknown collective or algorithm; the error then lists the
    known names.
    """
    contract(collective)
    size = check_number(nbytes, "nbytes")
    if size < 0:
        raise ValueError(f"nbytes is {size}")
    elements = size // dtype.itemsize
    wire: list[str] = []
    if form is not None:
        elements, dtype, wire = _encoded(prepare, collective, size, form, algorithm)
    shape = Shape(collective, dtype, elements, elements, elements)
    chosen, reason, row = prepare.choose(shape, algorithm)
    most = prepare.at_a_time(shape)
    section = [f"  at a time   {most} elements: what is reduced is sent while the caches hold it"]
    situation = prepare.situation
    peers = Counter(kind for kind in linked.kinds if kind != "self")
    sockets = linked.sockets
    each = {"tcp": f" ({sockets} sockets each)"} if sockets > 1 else {}
    if linked.rendezvous:
        each["verbs"] = f" (rendezvous from {linked.rendezvous} bytes)"
    links = ", ".join(f"{n} over {kind}{each.get(kind, '')}" for kind, n in peers.items()) or "none"
    usable = [a.name for a in registry.algorithms(collective, prepare.size)]
    others = [name for name in usable if name != chosen.name]
    kind = name_of(dtype) if form is None else f"{engine_name(dtype)} in a section"
    lines = [
        f"{collective} of {size} bytes ({elements} {kind}) among {situation.size} ranks",
        f"  algorithm   {chosen.name}: {reason}",
        *row_lines(row, 12),
        *because,
        *wire,
        *_engines(linked.group, prepare, shape, chosen.name, prepare.schedule(chosen).grid),
        *(section if 0 < most < elements else ()),
        *on_devices,
        f"  peers       {links}",
        f"  hosts       {_hosts(prepare.layout)}",
        f"  cores       {'oversubscribed on some host' if situation.oversubscribed else 'one or more for each rank'}",
        f"  others      {', '.join(others) or 'none'}",
        "",
        f"choices for {collective} in this group, the first that fits",
    ]
    for row in ladder(collective, situation, usable.__contains__, prepare.table):
        upto = f"up to {row.bytes} bytes" if row.bytes < ANY_SIZE else "any size"
        lines.append(f"  {upto:22} {row.algorithm:22} {row.reason}")
    from collectives.schedule.listing import explain as listing  # plays a whole group

    return "\n".join([*lines, "", listing(prepare.schedule(chosen))])


def wire_lines(prepare: Preparer, collective: str, nbytes: int, dtype: Dtype) -> tuple[WireName | None, list[str]]:
    """Returns the format that wire="auto" stands for, None if arrays are sent as they are, and lines that say why.

    `nbytes`: the size of the larger array. Raises ValueError for a collective that has no formats.
    """
    contract(collective)
    _check_wired(collective)
    if dtype != FLOAT32:
        return None, [f"  wire        auto: {name_of(dtype)} is sent as it is, formats are for float32"]
    choice = prepare.wire(collective, check_number(nbytes, "nbytes"))
    lines = [f"  wire        auto chooses {choice.algorithm}: {choice.reason}", *row_lines(choice.row, 12)]
    return format_name(choice.algorithm), lines


def _check_wired(collective: str) -> None:
    if collective not in WIRED:
        raise ValueError(f"{collective} has no wire formats; {', '.join(WIRED)} have")


def _encoded(
    prepare: Preparer, collective: str, size: int, form: Format, algorithm: str
) -> tuple[int, Dtype, list[str]]:
    """The elements of a section of an array of `size` bytes of float32, their dtype, and lines about the format."""
    from collectives.schedule.rounding import roundings  # plays a whole group

    _check_wired(collective)
    sections = divide([size // FLOAT32.itemsize], form, wired.SECTION // FLOAT32.itemsize)
    elements = sections[0].inp
    chosen, _, _ = prepare.choose(Shape(collective, form.element, elements, elements, elements), algorithm)
    times = roundings(chosen, prepare.size, layout=prepare.layout if chosen.hosts else None)
    total = sum(section.inp for section in sections) * form.element.itemsize
    error = (1 + form.rounding) ** times - 1
    return (
        elements,
        form.element,
        [
            f"  wire        {form.name}: {total} bytes, in {len(sections)} sections that overlap",
            f"              rounded {times} times on the longest path: the error of a sum is at most {error:.2g} of",
            "              the largest numbers of all ranks, added up (docs/calls.md)",
        ],
    )


def explain_cuda(
    leading: LeaderCalls | None,
    streams: StreamCalls | None,
    prepare: Preparer,
    linked: Linked,
    collective: str,
    nbytes: int,
    dtype: Dtype,
    algorithm: str = "auto",
) -> list[str]:
    """Returns lines of text: which engine runs a call on arrays in CUDA memory, and why engines asked before do not."""
    name, op = name_of(dtype), _op_of(collective)
    if algorithm != "auto":
        return [_named(streams, linked, collective, dtype, algorithm)]
    chosen: Choice | None = None
    against: dict[str, str] = {}
    for engine, choose in (
        (LEADER, None if leading is None else leading.choose),
        (ENGINE, None if streams is None else partial(streams.choose, schedules=True)),
    ):
        if choose is None:
            against[engine] = linked.without.get(engine) or "it is closed"
            continue
        choice, why_not = choose(collective, nbytes, name, op)
        chosen = chosen or choice
        if why_not:
            against[engine] = why_not
    if streams is not None and streams.hierarchy is not None:
        why_not = streams.hierarchy.why_not(collective, name, op)
        if why_not:
            against[HIERARCHY] = why_not
    if chosen is None:
        return [f"  on CUDA     staging: through host memory, because {against[ENGINE]}", *_refusals(against, LEADER)]
    on = next(
        (c.device for e, c in ((LEADER, leading), (ENGINE, streams)) if c is not None and e == chosen.algorithm), None
    )
    made = "" if on is None else f", on device {on}"
    rows = [row for row in prepare.table.rows if (row.collective, row.memory) == (collective, chosen.row.memory)]
    asked = [row.algorithm for row in rows[: rows.index(chosen.row)]]
    if chosen.algorithm == "staging":  # also what runs no calls of this kind
        asked += against
    return [
        f"  on CUDA     {chosen.algorithm}: {chosen.reason}{made}",
        *_refusals(against, *dict.fromkeys(asked)),
        *row_lines(chosen.row, 12),
        *([f"  MPS         {mps()}"] if leading is not None and leading.shares_device else []),
    ]


def _named(streams: StreamCalls | None, linked: Linked, collective: str, dtype: Dtype, algorithm: str) -> str:
    """A line that says where the schedule of an algorithm runs on arrays in CUDA memory, if a call names it."""
    if streams is None:
        against = linked.without.get(ENGINE) or "it is closed"
    else:
        against = streams.why_not_scheduled(collective, name_of(dtype), _op_of(collective), algorithm)
    if against or streams is None:
        return f"  on CUDA     {algorithm} on a copy in host memory, because {against}"
    rounds = streams.rounds(collective, algorithm)
    made = "" if streams.device is None else f", on device {streams.device}"
    reduced = ", and kernels reduce" if _op_of(collective) else ""
    return f"  on CUDA     {algorithm}: NCCL carries its messages in {rounds} rounds{reduced}{made}"


def why_no_device(linked: Linked) -> str:
    """Returns why this group has no engine for arrays in CUDA memory: what this process lacks, or what others lack."""
    reasons = {
        engine: transports.library(engine).available() or linked.without.get(engine) or "it is closed"
        for engine in (LEADER, ENGINE)
    }
    return "; ".join(dict.fromkeys(reasons.values()))


def _refusals(against: Mapping[str, str], *engines: str) -> list[str]:
    """Lines that say why these engines do not run a call."""
    return [f"  not         {engine}: {against[engine]}" for engine in engines if engine in against]


def _op_of(collective: str) -> str:
    return "sum" if collective in ("allreduce", "reduce", "reduce_scatter", "scan", "exscan") else ""


def _engines(group: Group, prepare: Preparer, shape: Shape, algorithm: str, blocks: tuple[int, int]) -> Iterator[str]:
    """Lines of text: the engine that runs the call, and why each engine that is asked before that one refuses it.

    `blocks`: the numbers of blocks into which the algorithm divides input and output. If these numbers differ, and in
    alltoall, all blocks have the same length.
    """
    if blocks[0] != blocks[1] or shape.collective == "alltoall":
        each = shape.agreed // max(*blocks)
        shape = shape._replace(inp=each * blocks[0], out=each * blocks[1])
    for name, refuses in group.engines(prepare.collective(shape, algorithm).operation):
        if name == "generalized":  # engines of other packages: `Engines.explain` has lines for them
            continue
        if refuses is None:
            yield f"  engine      {name}"
            return
        yield f"  not         {name}: {refuses}"


def row_lines(row: Row | None, width: int) -> list[str]:
    """Returns lines of text about `row`, the row of the table that chose an algorithm, and the file that it comes from.

    Returns no lines if `row` is None, because the user named the algorithm. Each line begins with a label, padded to
    `width` characters.
    """
    if row is None:
        return []
    return [f"  {'row':{width}}{row.rule}", f"  {'from':{width}}{row.source or 'unknown'}"]


def _hosts(layout: Layout) -> str:
    counts = Counter(map(len, layout.members))
    return ", ".join(
        f"{hosts} with {ranks} rank{'s' * (ranks > 1)}" for ranks, hosts in sorted(counts.items(), reverse=True)
    )
