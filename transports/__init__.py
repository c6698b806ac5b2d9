"""How ranks reach each other: one file per transport, and a registry by scheme.

Invariant: imports only `native`.
"""
