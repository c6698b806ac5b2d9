"""Compares what the ranks of a run reported with what its case expects.

Invariant: only reports, exit codes and the runner's own clock count. A rank that did not report is a hang, a rank whose
error names a healthy one has blamed it wrongly, and neither counts as detected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from collectives.bench.chaos.case import FINE, Expect, Finding
from collectives.bench.chaos.run import Member, Run

_RANK: Final = re.compile(r"\branks? (\d+(?:(?:-|, | and )\d+)*)")


def judge(run: Run, hung: Iterable[int], left: list[str]) -> Finding:
    """Compare the behaviour of all ranks after an injected fault with the correct behaviour.

    `run` is the finished test. `hung` has the ranks that had to be killed. `left` lists the store keys, and the files
    in /dev/shm, that were not removed. Return a summary, with a text for each problem.
    """
    finding = Finding(run.unit, leaks=list(left))
    for member in run.members:
        victim = member.number in run.victims
        finding.reports.append(report(run, member))
        if member.number in hung:
            finding.hangs += 1
            said = "has closed, but does not end" if member.event("closed") else "is not heard of any more"
            if member.outcome and not member.event("closed"):
                said = "does not return from close()"
            finding.problems.append(f"rank {member.number} hangs: it {said}")
        expect = run.case.victims if victim else run.case.survivors
        if expect is not None:
            finding.ranks += 1
            _expected(run, member, expect, finding)
        if victim and run.case.ends is not None:
            _ended(run, member, finding)
        elif expect is not None and member.status != 0 and member.number not in (*run.killed, *hung):
            finding.problems.append(f"rank {member.number} ended with {_status(member.status)}")
        closed = member.event("closed")
        if closed and not victim:
            finding.leaks += [f"rank {member.number}: {more} {name}" for name, more in closed["left"].items()]
        for event in member.all("unclosed"):
            finding.problems.append(f"rank {member.number}: {event['text']}")
    return finding


def report(run: Run, member: Member) -> str:
    """What the rank `member` did in the run, as a line of text."""
    found = member.outcome
    origin = run.moments.get("injected", run.moments.get("begun", 0.0))
    who = f"rank {member.number}{' (victim)' if member.number in run.victims else ''}"
    if found is None:
        return f"{who}: no outcome; last report {member.events[-1]['event'] if member.events else 'none'}"
    if found["event"] == "result":
        return f"{who}: no error, after {found['at'] - origin:.3f} s"
    return f"{who}: {found['kind']} after {found['raised'] - origin:.3f} s: {found['text']}"


def _expected(run: Run, member: Member, expect: Expect, finding: Finding) -> None:
    who, found = f"rank {member.number}", member.outcome
    origin = run.moments.get(expect.since)
    if found is None or origin is None:
        if found is None and not finding.hangs:
            finding.problems.append(f"{who} has ended without an outcome")
        return
    if expect.warns and not _warned(run, member, expect, origin, finding):
        return
    if found["event"] == "result":
        if FINE in expect.raises:
            finding.detected += 1
        else:
            finding.problems.append(f"{who} has noticed nothing")
        return
    seconds = found["raised"] - origin
    if found["kind"] not in expect.raises:
        finding.problems.append(
            f"{who} raises {found['kind']}, not {' or '.join(filter(None, expect.raises)) or 'nothing'}"
        )
        _blame(run, member, found, finding)
        return
    finding.seconds = max(finding.seconds or 0.0, seconds)
    good = _blame(run, member, found, finding, names=expect.names)
    if seconds > expect.within:
        finding.problems.append(f"{who} takes {seconds:.3f} s, more than {expect.within:g} s")
        good = False
    if seconds < -0.001:
        finding.problems.append(f"{who} raises {found['kind']} {-seconds:.3f} s before anything was injected")
        good = False
    if expect.text and not re.search(expect.text, found["text"]):
        finding.problems.append(f"{who}: the message does not have {expect.text!r}")
        good = False
    finding.detected += good


def _blame(run: Run, member: Member, found: dict[str, Any], finding: Finding, names: bool = False) -> bool:
    """Whether the error names whom it may name; and if it has to name somebody, whether it does."""
    may = run.nameable.get(member.number, set(run.victims))
    if found["ranks"] is not None:
        named = set(found["ranks"])
        if wrong := named - may:
            finding.blamed += 1
            finding.problems.append(f"rank {member.number} blames rank {', '.join(map(str, sorted(wrong)))}")
            return False
    elif not names:
        return True
    else:
        named = ranks_of(found["text"])
        if member.number in run.victims:
            named.add(member.number)  # "this rank"
        if named and not named & may:
            finding.blamed += 1
            finding.problems.append(f"rank {member.number} speaks of rank {', '.join(map(str, sorted(named)))} only")
            return False
    if names and not named & may:
        finding.problems.append(f"rank {member.number} names nobody")
        return False
    return True


def _warned(run: Run, member: Member, expect: Expect, origin: float, finding: Finding) -> bool:
    patterns = [re.compile(expect.warns.format(victim)) for victim in run.victims]
    good = [e for e in member.all("warning") if any(p.search(e["text"]) for p in patterns)]
    others = [rank for rank in range(run.size) if rank not in run.victims]
    wrong = [e for e in member.all("warning") if any(re.search(expect.warns.format(o), e["text"]) for o in others)]
    if wrong:
        finding.blamed += 1
        finding.problems.append(f"rank {member.number} warns of a healthy rank: {wrong[0]['text']}")
    if not good or good[0]["at"] - origin > expect.within:
        when = f"after {good[0]['at'] - origin:.3f} s" if good else "never"
        finding.problems.append(f"rank {member.number} warns of the slow rank {when}")
        return False
    finding.seconds = max(finding.seconds or 0.0, good[0]["at"] - origin)
    return not wrong


def _ended(run: Run, member: Member, finding: Finding) -> None:
    ends = run.case.ends
    assert ends is not None
    origin = run.moments.get("injected")
    if member.status not in ends.codes and not finding.hangs:
        finding.problems.append(f"rank {member.number} ended with {_status(member.status)}")
    if origin is not None and member.ended - origin > ends.within:
        finding.problems.append(f"rank {member.number} ends after {member.ended - origin:.3f} s")


def ranks_of(text: str) -> set[int]:
    """Return the rank numbers that the error message `text` names, in forms such as "rank 3" or "ranks 0-2"."""
    found: set[int] = set()
    for match in _RANK.findall(text):
        for part in re.split(", | and ", match):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _status(status: int | None) -> str:
    if status is None:
        return "no exit code"
    return f"signal {-status}" if status < 0 else f"exit code {status}"
