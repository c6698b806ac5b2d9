"""Connections between ranks: one file per transport, and a registry by scheme.

Invariant: this package imports only `native`.
"""
