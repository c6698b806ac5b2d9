"""Real Redis servers for tests: plain, with a password, with TLS.

Invariant: every server listens on 127.0.0.1 on a port that was free, keeps nothing on disk, and is ended by
whoever started it, at the latest when the test session ends.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.leftovers import marked

PASSWORD = "it's a /secret/ @ all"
_START = 20.0  # seconds a server may take to come up


@dataclass(frozen=True)
class RedisServer:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    port: int
    password: str | None = None
    certificates: Path | None = None  # folder with ca.pem, and with other.pem, a CA that signed nothing

    @property
    def url(self) -> str:
        """As `open_store` takes it."""
        scheme, query = ("redis", "") if self.certificates is None else ("rediss", f"?ca={self.certificates}/ca.pem")
        user = "" if self.password is None else f":{_quote(self.password)}@"
        return f"{scheme}://{user}127.0.0.1:{self.port}/0{query}"

    def client(self) -> redis.Redis:
        """A connection of its own, to look behind the store's back; to be closed."""
        ca = None if self.certificates is None else f"{self.certificates}/ca.pem"
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            password=self.password,
            socket_timeout=5,
            ssl=ca is not None,
            ssl_ca_certs=ca,
        )

    def stop(self) -> None:
        """Kill the server, stopped or not, and reap it. Idempotent."""
        self.process.kill()
        self.process.wait()


def start_redis(
    folder: Path, *, port: int = 0, password: str | None = None, certificates: Path | None = None
) -> RedisServer:
    """A server that answers; `port` 0 takes a free one. The caller stops it."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian and Ubuntu: apt install redis-server)")
    for _ in range(5):  # Redis cannot be handed a bound socket, so somebody may be quicker
        number = port or free_port()
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
        options += ["--requirepass", password] if password is not None else []
        options += _tls_options(number, certificates) if certificates is not None else ["--port", str(number)]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server = RedisServer(process, number, password, certificates)
        if _answers(server):
            return server
        ended = process.poll() is not None
        server.stop()
        if not ended:
            break
    pytest.fail(f"redis-server did not come up within {_START} s")


def make_certificates(folder: Path) -> Path:
    """A certificate authority, a server certificate for 127.0.0.1, and an authority that signed nothing."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed (Debian and Ubuntu: apt install openssl)")

    def openssl(*arguments: str) -> None:
        subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "other"):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]  # which Python 3.13 insists on
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={name}", *usage, *files)
    openssl("req", *key, "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr")
    extensions = (
        "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "authorityKeyIdentifier=keyid",
        "subjectKeyIdentifier=hash",
    )
    (folder / "extensions").write_text("\n".join(extensions))
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-days", "2", "-extfile", "extensions", "-out", "server.pem"),
    )
    return folder


@pytest.fixture(scope="session")
def redis_plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that lets everybody in."""
    server = start_redis(tmp_path_factory.mktemp("redis"))
    marked().keep(server.process.pid)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_password(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that wants a password, one that has to be quoted in a URL."""
    server = start_redis(tmp_path_factory.mktemp("redis"), password=PASSWORD)
    marked().keep(server.process.pid)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that speaks TLS only."""
    folder = tmp_path_factory.mktemp("redis")
    server = start_redis(folder, certificates=make_certificates(folder))
    marked().keep(server.process.pid)
    yield server
    server.stop()


def _answers(server: RedisServer) -> bool:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline and server.process.poll() is None:
        client = server.client()
        try:
            if client.ping():
                return True
        except redis.RedisError:
            time.sleep(0.02)  # between two looks at something that tells nobody when it is ready
        finally:
            client.close()
    return False


def _tls_options(port: int, folder: Path) -> Sequence[str]:
    files = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}
    options = ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"]
    for name, file in files.items():
        options += [f"--tls-{name}-file", str(folder / file)]
    return options


def free_port() -> int:
    """One that nobody uses yet, for who cannot be handed a bound socket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def _quote(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
