"""Arrays of any library that users pass to collectives, as plain memory.

Invariant: nothing in this package communicates.
"""
