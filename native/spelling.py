"""Suggests a known name in place of an unknown one.

Invariant: only this module compares names by similarity; every error message about an unknown name uses this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# Names that other libraries use, and our names.
_SYNONYMS: Final = {
    "add": "sum",
    "mean": "avg",
    "average": "avg",
    "mul": "prod",
    "product": "prod",
    "maximum": "max",
    "minimum": "min",
    "and": "land",
    "or": "lor",
    "xor": "lxor",
    "bcast": "broadcast",
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int64",
    "memory": "shm",
    "socket": "tcp",
    "infiniband": "verbs",
    "rdma": "verbs",
}


def meant(name: object, known: Iterable[str]) -> str | None:
    """The name in `known` that has the same meaning as `name`, or is most similar to it; None if none is similar."""
    names = list(known)
    text = str(name).strip().lower()
    if _SYNONYMS.get(text) in names:
        return _SYNONYMS[text]
    plain = {other.lower().replace("-", "_"): other for other in reversed(names)}
    near = difflib.get_close_matches(text.replace("-", "_"), plain, 1)
    return plain[near[0]] if near else None


def hint(name: object, known: Iterable[str]) -> str:
    """The suggestion as the end of an error message, for example " (did you mean 'avg'?)"; empty if there is none."""
    found = meant(name, known)
    return "" if found is None else f" (did you mean {found!r}?)"
