"""Runs a command with COLLECTIVES_STORE set to a Redis server: a server that answers here, or one that this starts.

Invariant: a server started here listens on loopback only, requires a password that is in no argument list, stores
nothing on disk, and is stopped when the command ends. Without any server, this prints so and succeeds.

    python tools/with_redis.py COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import redis

USUAL = "redis://127.0.0.1:6379/0"
DEADLINE = 10.0  # seconds for a started server to answer


def answers(url: str) -> bool:
    """Whether a server answers there and accepts the password."""
    with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url, socket_timeout=1.0) as client:
        return bool(client.ping())
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def own_server(program: str) -> Iterator[str]:
    """Start a server on a free port; yields its URL."""
    port, password = free_port(), secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        settings = f'port {port}\nbind 127.0.0.1\nrequirepass {password}\nsave ""\nappendonly no\ndir {folder}\n'
        server = subprocess.Popen([program, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            assert server.stdin is not None
            server.stdin.write(settings.encode())
            server.stdin.close()
            url = f"redis://:{password}@127.0.0.1:{port}/0"
            end = time.monotonic() + DEADLINE
            while not answers(url):
                if server.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{program} does not answer on port {port}")
                time.sleep(0.05)
            yield url
        finally:
            server.terminate()
            server.wait()


def main() -> int:
    with contextlib.ExitStack() as stack:
        if answers(USUAL):
            url, which = USUAL, "the Redis server of this machine"
        elif program := shutil.which("redis-server"):
            url, which = stack.enter_context(own_server(program)), "a Redis server of its own"
        else:
            print("No Redis server here: this part is left out.")
            return 0
        print(f"Meeting through {which}.", flush=True)
        return subprocess.run(sys.argv[1:], check=False, env={**os.environ, "COLLECTIVES_STORE": url}).returncode


if __name__ == "__main__":
    sys.exit(main())
