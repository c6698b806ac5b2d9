"""Connections between ranks: one file per transport, and a registry that maps URL schemes to transports.

Invariant: of the library's own packages, this package imports only `native`, the bindings to the C++ engine.
"""
