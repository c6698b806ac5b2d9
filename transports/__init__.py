"""Connections between ranks: one file per transport, and a registry by scheme.

Invariant: imports only `native`.
"""
