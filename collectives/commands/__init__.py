"""The command line, one file for each command.

Invariant: no command is imported before it is asked for, and none but those that measure or inspect the engine
need it: ranks can be started, and `--help` read, where it is not built.
"""
