"""What pyverbs, the Python binding of rdma-core, tells about RDMA devices: details for `collectives doctor`.

Invariant: nothing depends on it. The engine talks to libibverbs itself, so that ranks are linked without pyverbs, too.
Its enumerations lie in different modules: in `pyverbs.enums` before rdma-core 57, in `pyverbs.libibverbs_enums` since.
It uses functions of libibverbs that only the same release of rdma-core has.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

_ENUMERATIONS = ("libibverbs_enums", "enums")


def describe(device: str) -> str:
    """Return one line about the RDMA device `device`: firmware, limits, and whether it supports paging on demand.

    Raises ImportError if pyverbs is missing or cannot be loaded, RuntimeError if pyverbs cannot query the device.
    """
    enums = enumerations()
    context_of: Any = _module("device").Context
    try:
        context = context_of(name=device)
        try:
            known = context.query_device()
            extended = context.query_device_ex()
        finally:
            context.close()
    except Exception as error:  # a class of pyverbs's own, which is no OSError
        raise RuntimeError(f"pyverbs cannot ask {device}: {error}") from error
    pages = bool(extended.odp_caps.general_caps & enums.IBV_ODP_SUPPORT)
    return (
        f"firmware {known.fw_version or 'of no version'}, up to {known.max_qp} queue pairs, {known.max_mr} regions of "
        f"{known.max_mr_size} bytes, {'pages' if pages else 'no paging'} on demand"
    )


def enumerations() -> Any:
    """Return the module of pyverbs with the constants of verbs, such as `IBV_PORT_ACTIVE`. Raises ImportError."""
    problems = []
    for name in _ENUMERATIONS:
        try:
            return _module(name)
        except ImportError as error:
            problems.append(str(error))
    raise ImportError(f"pyverbs has no enumerations: {'; '.join(problems)}")


def _module(name: str) -> Any:
    """A module of pyverbs. Raises ImportError, which says so if libibverbs is of another release than pyverbs."""
    try:
        return importlib.import_module(f"pyverbs.{name}")
    except ImportError as error:
        release = re.search(r"IBVERBS_PRIVATE_(\d+)", str(error))
        if release is None:
            raise
        raise ImportError(
            f"pyverbs {release[1]} works only with libibverbs {release[1]}, which this machine does not have: install "
            f"the pyverbs of its own rdma-core, such as the distribution's python3-pyverbs ({error})"
        ) from error
