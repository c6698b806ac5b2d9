"""Calls on a communicator: checks their arguments, and turns them into operations of the C++ engine, with a cache.

Invariant: a call with invalid arguments raises ValueError or TypeError before anything is sent.
"""
