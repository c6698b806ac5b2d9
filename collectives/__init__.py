"""Collective communication for Python: allreduce and other collectives between processes, threads and machines.

    import collectives
    with collectives.init("tcp://127.0.0.1:29500", rank=rank, size=2) as comm:
        total = comm.allreduce(x)

Invariant: the names in `__all__` are the public interface and are kept; everything else may change. A name is imported
when it is first used, so that importing one part of the library does not import the others.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectives.algorithms import algorithm as algorithm
    from collectives.calls.op import Op as Op
    from collectives.calls.plan import Plan as Plan
    from collectives.calls.status import Status as Status
    from collectives.calls.work import Work as Work
    from collectives.core.communicator import Communicator as Communicator
    from collectives.core.init import init as init
    from collectives.native.errors import Aborted as Aborted
    from collectives.native.errors import AuthError as AuthError
    from collectives.native.errors import CollectiveError as CollectiveError
    from collectives.native.errors import ConfigMismatch as ConfigMismatch
    from collectives.native.errors import DesyncError as DesyncError
    from collectives.native.errors import OpTimeout as OpTimeout
    from collectives.native.errors import PeerLost as PeerLost
    from collectives.native.errors import QuorumLost as QuorumLost
    from collectives.native.errors import StaleEpoch as StaleEpoch
    from collectives.native.errors import StoreError as StoreError
    from collectives.native.errors import TransportUnavailable as TransportUnavailable
    from collectives.native.plugins import get_include as get_include
    from collectives.rendezvous import Store as Store
    from collectives.rendezvous import open_store as open_store
    from collectives.schedule.verification import verify as verify

    __version__: str

__all__ = [
    "Aborted",
    "AuthError",
    "CollectiveError",
    "Communicator",
    "ConfigMismatch",
    "DesyncError",
    "Op",
    "OpTimeout",
    "PeerLost",
    "Plan",
    "QuorumLost",
    "StaleEpoch",
    "Status",
    "Store",
    "StoreError",
    "TransportUnavailable",
    "Work",
    "algorithm",
    "get_include",
    "init",
    "open_store",
    "verify",
]

_HOMES = {
    "Communicator": "core.communicator",
    "Op": "calls.op",
    "Plan": "calls.plan",
    "Status": "calls.status",
    "Store": "rendezvous",
    "Work": "calls.work",
    "algorithm": "algorithms",
    "get_include": "native.plugins",
    "init": "core.init",
    "open_store": "rendezvous",
    "verify": "schedule.verification",
}  # the module that defines a name; the other names of __all__ are defined in native.errors
_PACKAGES = ("algorithms", "arrays", "calls", "core", "engines", "native", "rendezvous", "schedule", "transports")


def __getattr__(name: str) -> Any:
    """Return the public name or subpackage `name`, imported when it is first used (PEP 562)."""
    if name in __all__:
        value = getattr(_import_module(f"collectives.{_HOMES.get(name, 'native.errors')}"), name)
    elif name in _PACKAGES:
        return _import_module(f"collectives.{name}")
    elif name == "__version__":
        from collectives.base.version import library_version

        value = library_version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES, "__version__"})
