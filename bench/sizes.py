"""Converts sizes such as "64K" from and to numbers of bytes; the code is in `collectives.base.sizes`."""

from collectives.base.sizes import LARGEST, parse, series, text

__all__ = ["LARGEST", "parse", "series", "text"]
