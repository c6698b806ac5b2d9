"""The command line, one file for each command.

Invariant: the module of a command is imported only when the command is used.
"""
