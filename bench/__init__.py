"""The benchmark: what the collectives do on the user's own machines, beside what else could be used.

Invariant: a figure comes with the command, the machine and the raw samples behind it, and every result that is
timed is also checked. Imports the other packages; none of them imports this one.
"""
