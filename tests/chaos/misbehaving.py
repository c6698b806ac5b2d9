"""Cases whose ranks do, on purpose, what the library must not do: to see that each is noticed and counted.

Only the program differs from a case of the library's: nothing of the runner or the judge is replaced.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import collectives
from collectives.bench.chaos.case import FINE, Case, Ends, Expect
from collectives.bench.chaos.rank import Rank, die_with_parent
from collectives.bench.chaos.run import Run

_FOREVER = 3600.0
_kept: list[object] = []  # what ranks leak


def _healthy(rank: Rank) -> int:
    return next(number for number in range(rank.size) if number not in (*rank.victims, rank.number))


def _ready(rank: Rank) -> None:
    rank.tell("ready")
    rank.asked(None)


def _blames_a_healthy_rank(rank: Rank) -> None:
    _ready(rank)
    raise collectives.PeerLost("a rank is gone", [_healthy(rank)])


def _blames_a_healthy_rank_as_well(rank: Rank) -> None:
    _ready(rank)
    raise collectives.PeerLost("two ranks are gone", [*rank.victims, _healthy(rank)])


def _blames_in_words(rank: Rank) -> None:
    _ready(rank)
    raise collectives.DesyncError(f"rank {_healthy(rank)} is in operation 3, this rank in operation 4")


def _names_nobody(rank: Rank) -> None:
    _ready(rank)
    raise collectives.PeerLost("a rank is gone")


def _raises_another_error(rank: Rank) -> None:
    _ready(rank)
    raise collectives.OpTimeout("timed out", rank.victims)


def _is_slow(rank: Rank) -> None:
    _ready(rank)
    time.sleep(1.0)  # longer than the case's bar
    raise collectives.PeerLost("a rank is gone", rank.victims)


def _raises_too_early(rank: Rank) -> None:
    if rank.number in rank.victims:
        time.sleep(0.5)  # the others raise meanwhile
    rank.tell("ready")
    raise collectives.PeerLost("a rank is gone", rank.victims)


def _notices_nothing(rank: Rank) -> None:
    _ready(rank)


def _hangs(rank: Rank) -> None:
    _ready(rank)
    time.sleep(_FOREVER)


def _crashes(rank: Rank) -> None:
    _ready(rank)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(_FOREVER)


def _leaks_a_descriptor(rank: Rank) -> None:
    _kept.append(os.open("/dev/null", os.O_RDONLY))
    _raises_well(rank)


def _leaks_a_thread(rank: Rank) -> None:
    thread = threading.Thread(target=time.sleep, args=(_FOREVER,), daemon=True)
    thread.start()
    _raises_well(rank)


def _leaks_a_segment(rank: Rank) -> None:
    import mmap

    file = os.memfd_create("leaked")
    os.ftruncate(file, 4096)
    _kept.append(mmap.mmap(file, 4096))
    os.close(file)
    _raises_well(rank)


def _leaks_a_child(rank: Rank) -> None:
    if os.fork() == 0:
        die_with_parent()
        time.sleep(_FOREVER)
        os._exit(0)
    _raises_well(rank)


def _leaves_a_key(rank: Rank) -> None:
    store = collectives.open_store(rank.store)
    store.set(f"left by {rank.number}", b"x")
    store.close()
    _raises_well(rank)


def _raises_well(rank: Rank) -> None:
    _ready(rank)
    raise collectives.PeerLost("a rank is gone", rank.victims)


def _inject(run: Run) -> None:
    run.wait_for("ready", range(run.size))
    run.injected()
    for rank in range(run.size):
        run.say(rank, "go on")


def _is_never_reached(rank: Rank) -> None:
    raise collectives.StoreError("the store is not there")


def _warns_of_a_healthy_rank(rank: Rank) -> None:
    import logging

    _ready(rank)
    logging.getLogger("collectives").warning("rank %d is slow", _healthy(rank))


def _does_not_end(rank: Rank) -> None:
    """The victim lives on after the time in which it has to end."""
    _ready(rank)
    if rank.is_victim:
        time.sleep(2.0)
        os._exit(0)
    raise collectives.PeerLost("a rank is gone", rank.victims)


BAR: Final = 5.0  # seconds, also for three ranks on a loaded machine


def _case(program: Callable[[Rank], None], **more: Any) -> Case:
    settings = {"survivors": Expect(("PeerLost",), within=BAR), "ends": None, **more}
    return Case(
        row=0, name=program.__name__.strip("_"), injected="nothing", program=program, inject=_inject, sizes=(3,),
        transports=("tcp",), **settings,
    )  # fmt: skip


CASES = (
    _case(_raises_well),
    _case(_blames_a_healthy_rank),
    _case(_blames_a_healthy_rank_as_well),
    _case(_blames_in_words, survivors=Expect(("DesyncError",))),
    _case(_names_nobody),
    _case(_raises_another_error),
    _case(_is_slow, survivors=Expect(("PeerLost",), within=0.5)),
    _case(_raises_too_early),
    _case(_notices_nothing),
    _case(_hangs),
    _case(_crashes),
    _case(_leaks_a_descriptor),
    _case(_leaks_a_thread),
    _case(_leaks_a_segment),
    _case(_leaks_a_child),
    _case(_leaves_a_key),
    _case(_is_never_reached),
    _case(_warns_of_a_healthy_rank, survivors=Expect((FINE,), within=BAR, warns=r"\brank {}\b")),
    _case(_does_not_end, ends=Ends(1.0, (0,))),
)
