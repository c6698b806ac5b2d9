"""`python -m collectives` is the command `collectives`."""

from __future__ import annotations

from collectives.commands.main import main

if __name__ == "__main__":
    main(prog_name="python -m collectives")
