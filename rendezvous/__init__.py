"""Rendezvous: stores, launchers' environments, and how the ranks of a job find each other.

Invariant: this package imports only `native`; everything here works before any link is open.
"""

from .group import Membership as Membership
from .group import exchange as exchange
from .group import form as form
from .group import release as release
from .prefix import PrefixStore as PrefixStore
from .store import Store as Store
from .store import open_store as open_store
