"""Simulation: how long a schedule takes on machines that need not be there.

Invariant: nothing here runs a collective.
"""
