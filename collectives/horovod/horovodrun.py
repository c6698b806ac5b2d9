"""What Horovod's own launcher says of a process, for `collectives.init`.

Invariant: every other launcher counts first, since it may be the one that is nearer to the process.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

from rendezvous.bootstrap import bootstrap

_FIRST_PORT: Final = 15000  # below the system's ephemeral ports, as derived ports of other launchers are
_PORTS: Final = 15000


def horovodrun(env: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for `collectives.init`: none where `horovodrun` did not start this process, or others say more.

    ValueError where it did, but ranks on several hosts don't know where to meet. NotImplementedError for elastic jobs.
    """
    if env.get("HOROVOD_ELASTIC") == "1":
        raise NotImplementedError(
            "HOROVOD_ELASTIC=1: there is no elastic mode; start as many ranks as there will be, and start again from "
            "a checkpoint where some are lost"
        )
    rank, size = env.get("HOROVOD_RANK"), env.get("HOROVOD_SIZE")
    if not rank or not size or _told_otherwise(env):
        return {}
    found: dict[str, Any] = {"rank": _number("HOROVOD_RANK", rank), "size": _number("HOROVOD_SIZE", size)}
    if env.get("COLLECTIVES_STORE"):
        return found
    if env.get("HOROVOD_LOCAL_SIZE") != size:
        raise ValueError(
            f"horovodrun started {size} ranks on several hosts, and does not say where rank 0 is: set "
            "COLLECTIVES_STORE to tcp://HOST:PORT, HOST being rank 0's, and COLLECTIVES_SECRET_FILE"
        )
    job = "-".join(env.get(f"HOROVOD_GLOO_RENDEZVOUS_{part}") or "" for part in ("ADDR", "PORT"))
    port = _FIRST_PORT + zlib.crc32(f"horovodrun-{job}".encode()) % _PORTS
    return {**found, "store": f"tcp://127.0.0.1:{port}"}


def _told_otherwise(env: Mapping[str, str]) -> bool:
    """Whether another launcher's variables tell the rank; also where they are wrong, which `init` will say."""
    try:
        return bootstrap(env=env).launcher != "none"
    except ValueError:
        return True


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{name}={text[:80]!r} is not a number, zero or more")
    return int(text)
