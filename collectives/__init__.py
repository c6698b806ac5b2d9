"""Collective communication for Python: allreduce and its relatives between processes, threads and machines.

    import collectives
    with collectives.init("tcp://127.0.0.1:29500", rank=rank, size=2) as comm:
        total = comm.allreduce(x)

Invariant: this is the face of the library. What is named in `__all__` is kept; everything else may change.
"""

from collectives.algorithms import algorithm as algorithm
from collectives.calls.op import Op as Op
from collectives.calls.plan import Plan as Plan
from collectives.calls.status import Status as Status
from collectives.calls.work import Work as Work
from collectives.core.communicator import Communicator as Communicator
from collectives.core.init import init as init
from collectives.core.init import library_version as _library_version
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
from collectives.rendezvous import Store as Store
from collectives.rendezvous import open_store as open_store
from collectives.schedule.verify import verify as verify

__version__ = _library_version()

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
    "init",
    "open_store",
    "verify",
]
