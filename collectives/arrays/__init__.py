"""Arrays: objects that users pass, viewed as plain memory.

Invariant: nothing here communicates.
"""
