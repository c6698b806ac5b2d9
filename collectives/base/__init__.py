"""Helpers that several packages of the library use: sizes with suffixes, plotting, the version.

Invariant: of the other packages of the library, this one imports only `native`.
"""
