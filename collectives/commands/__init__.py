"""The command line, one file for each command.

Invariant: no command is imported before it is asked for.
"""
