"""Calls: arguments checked and turned into operations of the engine, once, and kept.

Invariant: a call that cannot work raises ValueError or TypeError before anything is sent.
"""
