"""Horovod's API on this library: change the import, keep the script.

    import collectives.horovod.tensorflow as hvd          # was: import horovod.tensorflow as hvd
    import collectives.horovod.tensorflow.keras as hvd    # or .keras, or .torch

Invariant: what Horovod 0.28 has is there under its name and means the same, or raises and says what to use instead;
no argument is passed over in silence. docs/horovod.md has the table.
"""

from __future__ import annotations

from typing import Any, NoReturn


def run(*args: Any, **kwargs: Any) -> NoReturn:
    """Horovod starts a pickled function here. Nothing is pickled by this library: NotImplementedError."""
    raise NotImplementedError(
        "horovod.run sends a pickled function to processes that it starts: start the script instead, by "
        "`collectives run -n 4 script.py`"
    )
