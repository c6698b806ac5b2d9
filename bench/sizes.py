"""Sizes, as all commands read and write them: see `collectives.core.sizes`."""

from collectives.core.sizes import LARGEST, parse, series, text

__all__ = ["LARGEST", "parse", "series", "text"]
