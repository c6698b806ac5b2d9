"""Predicts by simulation the time that a schedule takes, also on machines that do not exist.

Invariant: nothing in this package runs a collective.
"""
