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
    """Return the name in `known` that a user probably meant by `name`: a synonym, or else the most similar name.

    Return None if no known name is similar.
    """
    names = list(known)
    text = str(name).strip().lower()
    if _SYNONYMS.get(text) in names:
        return _SYNONYMS[text]
    plain = {other.lower().replace("-", "_"): other for other in reversed(names)}
    near = difflib.get_close_matches(text.replace("-", "_"), plain, 1)
    return plain[near[0]] if near else None


def hint(name: object, known: Iterable[str]) -> str:
    """Return the end of an error message about the unknown name `name`, for example " (did you mean 'avg'?)".

    The text is empty if no name in `known` is similar.
    """
    found = meant(name, known)
    return "" if found is None else f" (did you mean {found!r}?)"
