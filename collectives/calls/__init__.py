"""Calls: checks arguments and turns them into operations of the engine, which are cached.

Invariant: a call that cannot work raises ValueError or TypeError before anything is sent.
"""
