"""Refuses the modes of Horovod's own launcher, `horovodrun`, that this library does not support.

`collectives.init` takes rank, size and rendezvous store from the launcher's environment variables: see
`collectives.rendezvous.launchers`.
"""

from __future__ import annotations

from collections.abc import Mapping


def refuse_elastic(env: Mapping[str, str]) -> None:
    """Raises NotImplementedError if `horovodrun` started this process as part of an elastic job, which is unsupported.

    `env`: the environment variables of this process.
    """
    if env.get("HOROVOD_ELASTIC") == "1":
        raise NotImplementedError(
            "HOROVOD_ELASTIC=1: there is no elastic mode; start as many ranks as there will be, and start again from "
            "a checkpoint where some are lost"
        )
