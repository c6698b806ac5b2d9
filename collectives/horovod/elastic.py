"""hvd.elastic, which is not supported: all its functions raise an error that names an alternative.

Invariant: importing this module works, so that scripts that only import it run.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python itself looks up such names
        raise AttributeError(name)
    raise NotImplementedError(
        f"hvd.elastic.{name}: there is no elastic mode. Where a rank is lost the others raise collectives.PeerLost, "
        "which names it, within seconds: save checkpoints, and start the job again"
    )
