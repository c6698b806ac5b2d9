"""Rendezvous: how the ranks of a job find each other, with key-value stores and the variables of launchers.

Invariant: of this library, this package imports only `native`. Everything here works before ranks are connected.
"""

from ._exchange import exchange as exchange
from .cause import first_cause as first_cause
from .group import Membership as Membership
from .group import form as form
from .group import release as release
from .keeper import Keeper as Keeper
from .prefix import PrefixStore as PrefixStore
from .store import Store as Store
from .store import open_store as open_store
