"""Run by a forked process: `given_code.py [OPTION ...] -c CODE [ARGUMENT ...]`, as Python would run it in isolation."""

import sys

del sys.path[0]  # this folder
at = sys.argv.index("-c")
code, sys.argv[:] = sys.argv[at + 1], ["-c", *sys.argv[at + 2 :]]
exec(compile(code, "<string>", "exec"))
