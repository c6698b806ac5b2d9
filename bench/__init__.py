"""The benchmark: measures the collectives on the user's machines, and compares them with other systems.

Invariant: a figure comes with the command, the machine and the raw samples behind it, and every timed result is also
checked. Imports the other packages; none of them imports this one.
"""
