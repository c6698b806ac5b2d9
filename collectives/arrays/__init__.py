"""Arrays: what users pass, looked at as plain memory.

Invariant: nothing here communicates.
"""
