"""The commands that `collectives bench` is made of, a file each with a `command`."""
