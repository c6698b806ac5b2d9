"""The job's secret: random bytes (32 by default) that only the ranks of one job know.

Invariant: a secret is passed in files of mode 0600, or in the volume in which a scheduler such as Kubernetes mounts
secrets (see `read`). It never appears in arguments, error messages, logs or the store. The HMAC of a value in the store
also covers run, epoch and key. So a value that is copied to another key or run is not valid there.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shlex
import stat
import struct

from collectives.native.errors import AuthError

SIZE = 32  # bytes of a secret that `mint` makes
MIN_SIZE = 16
MAX_SIZE = 4096
TAG_SIZE = 32


def mint() -> bytes:
    """A new secret."""
    return secrets.token_bytes(SIZE)


def write(path: str | os.PathLike[str], secret: bytes) -> None:
    """Write `secret` to the new file `path`, with mode 0600, as one line of hexadecimal digits.

    Raises: ValueError for a secret of less than 16 or more than 4096 bytes; FileExistsError if the file exists; other
    OSErrors if it cannot be written.
    """
    check(secret)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask
        file.write(secret.hex() + "\n")


def read(path: str | os.PathLike[str]) -> bytes:
    """Return the secret in the file `path`, as bytes.

    If the file has only hexadecimal digits, they are decoded; otherwise the secret is the content of the file. A
    newline at the end is dropped.

    Only the file's owner may have access to the file. There is one exception: files of root on a read-only tmpfs mount.
    Kubernetes, Docker and Podman pass secrets to a container in such files, by default with mode 0644 or 0444. Only the
    container can see the mount, and nothing in the container can change it.

    Raises: AuthError if the file cannot be read, is no regular file, or belongs neither to root nor to this user. Also
    AuthError if other users have access to it and the exception does not apply, and for a secret of less than 16 or
    more than 4096 bytes.
    """
    name = os.fspath(path)
    try:
        with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise AuthError(f"secret file {name}: not a regular file")
            if status.st_mode & 0o077 and not _in_a_volume_of_secrets(file.fileno(), status):
                raise AuthError(
                    f"secret file {name}: mode {stat.S_IMODE(status.st_mode):04o} lets others than its owner "
                    f"use it; {_cure(name, file.fileno())}"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise AuthError(f"secret file {name}: belongs to user {status.st_uid}, not to this process's user")
            data = file.read(MAX_SIZE + 1)
    except PermissionError as error:
        raise AuthError(
            f"secret file {name}: cannot be read: {error.strerror}. In a Pod whose user is not root give the volume "
            "a group, securityContext.fsGroup, or the mode that it has by itself, defaultMode: 0444"
        ) from error
    except OSError as error:
        raise AuthError(f"secret file {name}: cannot be read: {error.strerror or error}") from error
    data = data.removesuffix(b"\n").removesuffix(b"\r")
    try:
        secret = bytes.fromhex(data.decode("ascii"))
    except ValueError:
        secret = data
    if not MIN_SIZE <= len(secret) <= MAX_SIZE:
        size = str(len(secret)) if len(secret) <= MAX_SIZE else f"more than {MAX_SIZE}"
        raise AuthError(f"secret file {name}: holds {size} bytes, not {MIN_SIZE} to {MAX_SIZE}")
    return secret


def _in_a_volume_of_secrets(descriptor: int, status: os.stat_result) -> bool:
    """Whether the open file is root's, is on a read-only file system in memory, and only its owner may write to it."""
    if status.st_uid != 0 or status.st_mode & 0o022 or not _is_read_only(descriptor):
        return False
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            # number, parent, device, ..., a lone hyphen, type of the file system
            fields = line.split()
            if fields[2] == device and "-" in fields:
                return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
    return False


def _is_read_only(descriptor: int) -> bool:
    return bool(os.fstatvfs(descriptor).f_flag & os.ST_RDONLY)


def _cure(name: str, descriptor: int) -> str:
    """Text for an error message: how to restrict the file `name` to its owner, by chmod or on a read-only mount."""
    if not _is_read_only(descriptor):
        return f"run: chmod 600 {shlex.quote(name)}"
    return (
        "it is mounted read-only, so give the volume that mode where it is declared (in a Pod defaultMode: 0400), or "
        f'use a copy: install -m 600 {shlex.quote(name)} "$HOME/job.key"'
    )


def check(secret: bytes) -> bytes:
    """`secret` if it is valid, else TypeError or ValueError."""
    if not isinstance(secret, bytes | bytearray):
        raise TypeError(f"a secret is bytes, not {type(secret).__name__}")
    if not MIN_SIZE <= len(secret) <= MAX_SIZE:
        raise ValueError(f"a secret has {MIN_SIZE} to {MAX_SIZE} bytes, not {len(secret)}")
    return bytes(secret)


def sign(secret: bytes, run: str, epoch: int, key: str, value: bytes) -> bytes:
    """Return the HMAC-SHA256 (32 bytes) of `run`, `epoch`, `key` and `value`, with `secret` as the key of the HMAC.

    The length of each value is part of the input, so different values never give the same input.
    """
    mac = hmac.new(secret, b"pycollectives record 1", hashlib.sha256)
    for field in (run.encode(), str(epoch).encode(), key.encode(), value):
        mac.update(struct.pack("!Q", len(field)))
        mac.update(field)
    return mac.digest()


def verify(secret: bytes, run: str, epoch: int, key: str, value: bytes, tag: bytes) -> bool:
    """Return whether `tag` equals `sign(secret, run, epoch, key, value)`. The comparison takes constant time."""
    return hmac.compare_digest(sign(secret, run, epoch, key, value), tag)
