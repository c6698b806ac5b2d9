"""`collectives calibrate`, `collectives bench` and its subcommands: each has a file that defines it as `command`."""
