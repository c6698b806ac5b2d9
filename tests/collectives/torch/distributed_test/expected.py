"""Where torch's tests may fail on this backend, and why.

Invariant: each entry is a difference that users can see and that is meant; with it goes what the failure looks like.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Expected(NamedTuple):
    reason: str
    text: str = ""  # part of the traceback

    def covers(self, traceback: str) -> bool:
        return self.text in traceback


_WORDS: Final = Expected(
    "asks for Gloo's words; ours name the ranks that are late and how long they were waited for",
    "barrier() timed out after",
)
_BY_NAME: Final = Expected(
    "torch.distributed.monitored_barrier asks for the backend by Gloo's name",
    "monitored_barrier is only implemented for GLOO backend",
)

ON_CPU: Final[dict[str, Expected]] = {
    "test_barrier_timeout_full_group": _WORDS,
    "test_barrier_timeout_global": _WORDS,
    "test_barrier_timeout_group": _WORDS,
    "test_monitored_barrier_failure_order": _BY_NAME,
    "test_monitored_barrier_gloo": _BY_NAME,
    "test_monitored_barrier_gloo_rank_0_timeout": _WORDS,
    "test_monitored_barrier_gloo_subgroup": _BY_NAME,
    "test_monitored_barrier_wait_all_ranks": _BY_NAME,
}

# Beside those that fail with Gloo.
ON_GPU: Final[dict[str, Expected]] = {}
