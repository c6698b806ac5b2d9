"""Horovod's API, implemented by this library: a script has to change only its import of Horovod.

    import collectives.horovod.tensorflow as hvd          # was: import horovod.tensorflow as hvd
    import collectives.horovod.tensorflow.keras as hvd    # or collectives.horovod.keras, or .torch

Invariant: every name of Horovod 0.28 exists and has the same meaning, or raises an error that names a replacement; no
argument is ignored silently. docs/horovod.md lists all names.
"""

from __future__ import annotations

from typing import Any, NoReturn


def run(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError: Horovod's `run` sends a pickled function to processes; this library never pickles."""
    raise NotImplementedError(
        "horovod.run sends a pickled function to processes that it starts: start the script instead, by "
        "`collectives run -n 4 script.py`"
    )
