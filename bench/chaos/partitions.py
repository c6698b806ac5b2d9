"""Rows 5 and 6: ranks on several hosts (network namespaces), between which links are cut, one way or both.

Invariant: packets are dropped in silence, as by a broken switch. Every cut is mended after the run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any, Final

from collectives.bench.chaos import deaths, moments, work
from collectives.bench.chaos.case import Case, Expect
from collectives.bench.chaos.run import Run
from collectives.bench.chaos.silences import WORKS, form, forms

_Cut = Callable[[Run], None]

# --- what is cut


def _link_down(run: Run) -> None:
    """The victims' cables are pulled."""
    for victim in run.victims:
        _do(run, victim, ["ip", "link", "set", "net0", "down"], ["ip", "link", "set", "net0", "up"])


def _drop(run: Run, rank: int, chain: str, other: int | None = None) -> None:
    """Packets that come in (INPUT) or go out (OUTPUT) are dropped at `rank`, of and to `other` only if given."""
    peer = []
    if other is not None:
        peer = ["-s" if chain == "INPUT" else "-d", run.hosts[other].addresses["net0"]]
    rule = [chain, "-i" if chain == "INPUT" else "-o", "net0", *peer, "-j", "DROP"]
    _do(run, rank, ["iptables", "-A", *rule], ["iptables", "-D", *rule])


def _packets_dropped(run: Run) -> None:
    for victim in run.victims:
        _drop(run, victim, "INPUT")
        _drop(run, victim, "OUTPUT")


def _deaf(run: Run) -> None:
    """The victim sends, and receives nothing."""
    for victim in run.victims:
        _drop(run, victim, "INPUT")


def _mute(run: Run) -> None:
    """The victim receives, and nothing of what it sends arrives."""
    for victim in run.victims:
        _drop(run, victim, "OUTPUT")


def _edge(run: Run) -> None:
    """Nothing passes between two ranks; all others reach both."""
    one, two = run.victims
    for chain in ("INPUT", "OUTPUT"):
        _drop(run, one, chain, two)


def _edge_one_way(run: Run) -> None:
    """Nothing of what one rank sends reaches one other rank."""
    one, two = run.victims
    _drop(run, one, "OUTPUT", two)


def _halves(run: Run) -> None:
    """Half of the ranks do not reach the other half."""
    for victim in run.victims:
        for other in run.survivors:
            for chain in ("INPUT", "OUTPUT"):
                _drop(run, victim, chain, other)


# --- whom an error may name


def _one_side(run: Run) -> None:
    """A victim may name anybody else: it reaches none of them."""
    for victim in run.victims:
        run.nameable[victim] = set(range(run.size)) - {victim}


def _either(run: Run) -> None:
    """Two ranks do not reach each other: nobody can know which is to blame."""
    one, two = run.victims
    run.nameable[one], run.nameable[two] = {one, two}, {one, two}


def _other_half(run: Run) -> None:
    for rank in range(run.size):
        run.nameable[rank] = set(run.survivors) if rank in run.victims else set(run.victims)


def _cut(what: _Cut, nameable: _Cut) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        moments.at_work(run)
        nameable(run)
        run.injected()
        what(run)

    return inject


def _cut_joining(run: Run) -> None:
    moments.while_joining(run)
    _one_side(run)
    run.injected()
    _packets_dropped(run)


def _do(run: Run, rank: int, now: list[str], afterwards: list[str]) -> None:
    """Run a command on the host of `rank`, and another one after the run."""
    enter = run.hosts[rank].enter
    subprocess.run([*enter, *now], check=True, capture_output=True)
    run.undo.callback(subprocess.run, [*enter, *afterwards], check=True, capture_output=True)


def _why_not() -> str | None:
    import shutil

    return None if shutil.which("iptables") else "needs the iptables program: apt-get install iptables"


def _cases(row: int, name: str, injected: str, inject: Callable[[Run], None], **more: Any) -> tuple[Case, Case]:
    def make(end: str, bar: float, environment: dict[str, str]) -> Case:
        settings = {"program": work.until_error, "values": {"bytes": 1 << 20}, **more}
        return Case(
            row=row,
            name=f"{name}{end}",
            injected=injected,
            inject=inject,
            survivors=Expect(("PeerLost",), within=bar),
            # One that the others have found dead may hear of it before its own limit has passed.
            victims=Expect(("PeerLost", "StaleEpoch"), within=bar),
            environment=environment,
            form=form(end),
            transports=("tcp",),
            hosts=True,
            why_not=_why_not,
            **settings,
        )

    return forms(make)


CASES: Final = (
    *_cases(5, "link-down", "one rank's link goes down", _cut(_link_down, _one_side)),
    *(
        case
        for phase, values in WORKS.items()
        for case in _cases(
            5,
            f"cut-off-{phase}",
            f"all packets of one rank are dropped, {phase.replace('-', ' ')}",
            _cut(_packets_dropped, _one_side),
            values=values,
        )
    ),
    *_cases(
        5,
        "cut-off-joining",
        "all packets of one rank are dropped, joining",
        _cut_joining,
        program=deaths.joins,
        values={"work": "barrier"},
        keys_stay=True,
    ),
    *_cases(5, "deaf", "one rank receives nothing (half-open connections)", _cut(_deaf, _one_side)),
    *_cases(5, "mute", "nothing that one rank sends arrives", _cut(_mute, _one_side)),
    *_cases(6, "edge-cut", "two ranks do not reach each other", _cut(_edge, _either), chosen=2),
    *_cases(6, "edge-cut-one-way", "one rank does not reach another", _cut(_edge_one_way, _either), chosen=2),
    *_cases(6, "halves", "half of the ranks do not reach the others", _cut(_halves, _other_half), chosen=2),
)
