"""Sizes, as all commands read and write them: see `collectives.sizes`."""

from collectives.sizes import LARGEST, parse, series, text

__all__ = ["LARGEST", "parse", "series", "text"]
