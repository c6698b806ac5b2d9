"""The communicator: how ranks meet, which links they have, what they choose, and what users call.

Invariant: knows no framework.
"""
