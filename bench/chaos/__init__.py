"""Fault injection: real ranks are killed, stopped, cut off or misled, and what the others do is measured.

`cases` is the table of faults. For each run, `runner` forks the ranks, injects the fault and reads the ranks' reports;
`judging` compares them with what the case expects. Everything is observed from outside: through signals, packet
filters, exit codes, and the errors that a user's program would see.
"""
