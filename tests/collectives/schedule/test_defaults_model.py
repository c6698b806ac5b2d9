"""The built-in choice for groups that nobody has measured is what the simulator finds fastest, or near it."""

from __future__ import annotations

import pytest

from collectives.algorithms import algorithms
from collectives.commands.predictions import Setting
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.defaults import BY_MODEL, DEFAULTS, MEASURED
from collectives.schedule.select import select
from collectives.schedule.table import Situation, parse
from collectives.simulation.cost import Costs
from collectives.simulation.simulate import simulate
from collectives.simulation.topology import Topology
from tests.depth import LONG
from tools import model_defaults

# What is predicted for the default, over what is predicted for the best algorithm: 1.3 where rows were made, more for
# sizes and numbers of ranks in between, and for large arrays among hosts with several ranks, where those algorithms are
# preferred that send each byte to a host once.
FACTOR = 1.8
SIZES = (24, 6_000, 100_000, 1 << 20, 3_000_000, 100_000_000)

FLAT = [(ranks, 1) for ranks in ((2, 3, 5, 8, 16, 21, 64) if LONG else (2, 5, 16, 21))]
NESTED = [(hosts * per_host, per_host) for hosts, per_host in ((2, 2), (4, 2), (3, 5), (3, 8))]
ONE_HOST = [(ranks, ranks) for ranks in (18, 26)]


@pytest.mark.parametrize(("ranks", "per_host"), [*FLAT, *NESTED, *ONE_HOST])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_default_is_near_the_best_that_is_predicted(collective: str, ranks: int, per_host: int) -> None:
    setting = Setting(collective, (), Topology(per_host), Costs(), 0)
    usable = [a for a in algorithms(collective, ranks) if not a.hosts or 1 < per_host < ranks]
    for nbytes in (0,) if collective == "barrier" else SIZES:
        seconds = {a.name: simulate(a, ranks, nbytes, setting.topology).seconds for a in usable}
        chosen = setting.candidates(ranks, nbytes)[0].name
        fastest = min(seconds, key=seconds.__getitem__)
        assert seconds[chosen] <= FACTOR * seconds[fastest], (nbytes, chosen, fastest, seconds)


def test_64_hosts_and_a_mebibyte() -> None:
    """A ring of 711 us was the default where the simulator showed 253 us for halving_doubling."""
    setting = Setting("allreduce", (), Topology(1), Costs(), 0)
    (chosen,) = setting.candidates(64, 1 << 20)
    assert setting.predict(chosen, 64, 1 << 20).seconds < 1.3 * 253e-6


def test_measured_rows_stay() -> None:
    """They alone decide for the groups they were measured for: those that fit a few cores of one host."""
    for size in range(1, 17):
        for kind, largest in (("shm", 16), ("inproc", 16), ("tcp", 8)):
            for oversubscribed in (False, True):
                situation = Situation(size, kind, oversubscribed, per_host=size, hosts=1)
                for collective in COLLECTIVES if size <= largest else ():
                    for nbytes in (0, 8, 4096, 1 << 20, 1 << 30):
                        row = select(collective, nbytes, situation, lambda _: True).row
                        assert (row in MEASURED.rows and row.source == "built in") or collective not in CONTESTED


CONTESTED = {collective for collective, _ in model_defaults.contested()}


@pytest.mark.parametrize(
    ("collective", "number"), [("barrier", 1), ("barrier", 2), ("gather", 1), ("scatter", 2), ("reduce", 2)]
)
def test_the_file_is_what_the_tool_writes(collective: str, number: int) -> None:
    """A part that is soon simulated: `python -m tools.model_defaults` writes the whole file."""
    kind = model_defaults.KINDS[number]
    made = list(model_defaults.rows(collective, kind, model_defaults.simulated(collective, kind)))
    text = getattr(model_defaults_module(), kind.constant)
    assert [row for row in parse(text).rows if row.collective == collective] == made


def model_defaults_module() -> object:
    from collectives.schedule import modelled

    return modelled


def test_every_contested_collective_has_rows_of_every_kind() -> None:
    modelled = [row for row in DEFAULTS.rows if row.source == BY_MODEL]
    for collective, number in model_defaults.contested():
        kind = model_defaults.KINDS[number]
        rows = parse(getattr(model_defaults_module(), kind.constant)).rows
        assert any(row.collective == collective for row in rows)
        assert all(row in modelled for row in rows)
