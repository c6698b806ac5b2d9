"""The communicator: forming the group, links, the choice of algorithms, and the calls of users.

Invariant: imports no framework.
"""
