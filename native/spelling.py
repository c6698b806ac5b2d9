"""What somebody may have meant who wrote a name that there is not.

Invariant: the one place where names are compared by likeness; every message about an unknown name asks here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# What users of other libraries call it.
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
    """That one of `known` which is most like `name`, or means the same; None where none is like it."""
    names = list(known)
    text = str(name).strip().lower()
    if _SYNONYMS.get(text) in names:
        return _SYNONYMS[text]
    plain = {other.lower().replace("-", "_"): other for other in reversed(names)}
    near = difflib.get_close_matches(text.replace("-", "_"), plain, 1)
    return plain[near[0]] if near else None


def hint(name: object, known: Iterable[str]) -> str:
    """`meant` as a part of a message, with a space before it: " (did you mean 'avg'?)"; empty where there is none."""
    found = meant(name, known)
    return "" if found is None else f" (did you mean {found!r}?)"
