"""Helpers that several parts need and that have nothing to do with collectives: sizes with suffixes, plotting.

Invariant: imports nothing of the library but `native`.
"""
