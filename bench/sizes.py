"""Sizes in the notation of all commands: see `collectives.base.sizes`."""

from collectives.base.sizes import LARGEST, parse, series, text

__all__ = ["LARGEST", "parse", "series", "text"]
