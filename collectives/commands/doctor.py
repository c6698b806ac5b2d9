"""`collectives doctor`: what works on this machine, what does not, and what to do about it.

Invariant: the report lists problems first. The exit code is 1 exactly if a problem would prevent a job from running.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from collectives.algorithms import algorithms
from collectives.commands import checks, frameworks, gpus, rdma, trials
from collectives.commands.checks import Problem, Section
from collectives.commands.explain import row_text
from collectives.commands.machine import this_machine
from collectives.core import choosing
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.select import ladder
from collectives.schedule.table import Situation
from collectives.transports.host import usable_cores

_COLOURS = {"broken": "red", "hint": "yellow"}  # worst first


@click.command("doctor")
@click.option(
    "-n",
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ranks of a job on this host.  [default: the launcher's, else the cores]",
)
@click.option("--store", metavar="URL", help="Try this store.  [default: COLLECTIVES_STORE, if set]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(ranks: int | None, store: str | None, as_json: bool) -> None:
    """Report what works on this machine, and the reason for what does not.

    Checks processor, memory, limits, kernel and network; connects two ranks over each transport; checks the
    variables that the launcher set; tries the store, through which ranks find each other; reports how tensors of
    frameworks reach the library, and which devices, CuPy and NCCL there are. Problems come first, each with what to
    do. The exit code is 1 if a problem would prevent a job from running.
    """
    sections = examine(os.environ, ranks, store)
    click.echo(json.dumps(as_object(sections), indent=2) if as_json else as_text(sections))
    sys.exit(1 if any(p.severity == "broken" for s in sections for p in s.problems) else 0)


def examine(env: Mapping[str, str], ranks: int | None, store: str | None) -> list[Section]:
    """Runs all checks of `collectives doctor` for jobs with `ranks` ranks on this host; returns the report's parts.

    `ranks`: None for the number in the launcher's variables, or without one, one rank for each core. `store`: the URL
    of a store (through which ranks find each other) to test; None for the URL in the environment `env`.
    """
    job, launch = checks.job(env)
    secret, key = checks.secret(env)
    launcher = launch.launcher if launch else "none"
    if ranks is None:
        reported = (launch.local_size or launch.size) if launch and launcher != "none" else None
        ranks = reported or max(2, usable_cores())
    wanted = env.get("COLLECTIVES_TRANSPORT") or "auto"
    processor = checks.processor(ranks)
    transports = trials.transports(wanted, "instruction sets" in processor.facts, ranks)
    works = [scheme for scheme in ("shm", "tcp") if transports.facts.get(scheme) == "works"]
    return [
        job,
        secret,
        trials.store(store or env.get("COLLECTIVES_STORE"), key, launcher),
        transports,
        checks.network(env, key is not None),
        rdma.devices(wanted),
        processor,
        checks.memory(ranks),
        checks.limits(ranks, env),
        checks.kernel(ranks),
        checks.versions(),
        frameworks.section(env),
        gpus.section(env),
        _choices(ranks, wanted if wanted != "auto" else works[0] if works else "tcp", env),
    ]


def _choices(ranks: int, kind: str, env: Mapping[str, str]) -> Section:
    """The choices of "auto" on this host."""
    situation = Situation(ranks, kind if ranks > 1 else "self", ranks > usable_cores(), per_host=ranks, hosts=1)
    try:
        wanted = choosing.wish(0, None, None, env)
        table = choosing.in_force(wanted, this_machine(), situation)
    except ValueError as error:
        return Section("choices", {}, [Problem("broken", str(error), "correct the variable that is named")])
    facts = {}
    for name in COLLECTIVES:
        usable = {known.name for known in algorithms(name, ranks)}
        steps = ladder(name, situation, usable.__contains__, table)
        facts[name] = "; ".join(f"{row_text(row)}: {row.algorithm}" for row in steps)
    return Section(f"choices for {ranks} rank{'s' * (ranks > 1)} over {situation.kind}", facts)


def as_object(sections: Sequence[Section]) -> dict[str, Any]:
    problems = [
        {"section": s.title, "severity": p.severity, "problem": p.text, "advice": p.advice}
        for s in sections
        for p in s.problems
    ]
    return {
        "ok": not any(p["severity"] == "broken" for p in problems),
        "problems": sorted(problems, key=lambda p: list(_COLOURS).index(p["severity"])),
        "sections": {s.title: dict(s.facts) for s in sections},
    }


def as_text(sections: Sequence[Section]) -> str:
    lines = []
    for severity, colour in _COLOURS.items():
        mark = click.style(f"{severity:6}", fg=colour, bold=True)
        found = [p for s in sections for p in s.problems if p.severity == severity]
        lines += [line for p in found for line in (f"{mark}  {p.text}", f"        {p.advice}")]
    if not lines:
        lines.append(click.style("No problems found.", fg="green"))
    for section in sections:
        lines += ["", click.style(section.title, bold=True)]
        width = max((len(name) for name in section.facts), default=0)
        for name, value in section.facts.items():
            for number, text in enumerate(value if isinstance(value, list) else [value]):
                lines.append(f"  {'' if number else name:{width}}  {text}")
    return "\n".join(lines)
