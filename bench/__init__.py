"""The benchmark: measures the collectives on the user's machines, and compares them with other systems.

Invariant: every figure is stored with the command, the machine and the raw samples; the results of timed calls are also
checked for errors. This package imports the other packages; none of them imports this package.
"""
