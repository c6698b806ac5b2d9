"""The command line, one file for each command.

Invariant: a command's module is imported only when it is used.
"""
