"""Simulation: the time of a schedule on machines that need not exist.

Invariant: nothing here runs a collective.
"""
