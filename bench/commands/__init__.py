"""The commands of `collectives bench`, a file each with a `command`."""
