"""Secrets: minted, kept in files that only their owner reads, and what they sign."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.native.errors import AuthError
from collectives.rendezvous import secret


def test_minted_secrets_are_long_and_new() -> None:
    assert len(secret.mint()) == 32
    assert secret.mint() != secret.mint()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    value = secret.mint()
    previous = os.umask(0)
    try:
        secret.write(path, value)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret.read(path) == value
    with pytest.raises(FileExistsError):
        secret.write(path, value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610, 0o644, 0o777])
def test_files_that_others_may_use_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    secret.write(path, secret.mint())
    path.chmod(mode)
    with pytest.raises(AuthError, match=f"mode {mode:04o}.*chmod 600 {path}"):
        secret.read(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_files_for_their_owner_alone_are_fine(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    secret.write(path, secret.mint())
    path.chmod(mode)
    assert len(secret.read(path)) == 32


def test_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = tmp_path / "secret"
    secret.write(path, secret.mint())
    os.chown(path, 65534, 65534)
    with pytest.raises(AuthError, match="belongs to user 65534"):
        secret.read(path)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"ab" * 16, bytes([0xAB] * 16)),
        (b"AB" * 32 + b"\n", bytes([0xAB] * 32)),
        (b"a passphrase of words\n", b"a passphrase of words"),
        (b"a passphrase of words\r\n", b"a passphrase of words"),
        (bytes(range(128, 160)), bytes(range(128, 160))),
    ],
)
def test_hexadecimal_digits_or_else_the_bytes_themselves(tmp_path: Path, content: bytes, value: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    assert secret.read(path) == value


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"abcd" * 7, b"x" * 5000])
def test_too_short_and_too_long_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(AuthError, match=r"holds (\d+|more than 4096) bytes, not 16 to 4096") as caught:
        secret.read(path)
    assert content.decode() not in str(caught.value).replace(str(tmp_path), "") or not content.strip()


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="No such file"):
        secret.read(tmp_path / "missing")
    with pytest.raises(AuthError, match="Is a directory"):
        secret.read(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(AuthError, match="not a regular file"):  # and does not wait for a writer
        secret.read(tmp_path / "pipe")
    link = tmp_path / "link"  # as Kubernetes mounts secrets
    secret.write(tmp_path / "target", b"s" * 32)
    link.symlink_to("target")
    assert secret.read(link) == b"s" * 32


def test_arguments(tmp_path: Path) -> None:
    bad: Any
    for bad, error in ((b"short", ValueError), (b"x" * 5000, ValueError), ("text" * 8, TypeError), (None, TypeError)):
        with pytest.raises(error):
            secret.write(tmp_path / "secret", bad)
    assert os.listdir(tmp_path) == []


FIELDS = st.tuples(
    st.binary(min_size=16, max_size=20),
    st.text(max_size=8),
    st.integers(0, 20),
    st.text(max_size=8),
    st.binary(max_size=8),
)


@settings(deadline=None)
@given(one=FIELDS, other=FIELDS)
def test_a_signature_fits_its_place_only(
    one: tuple[bytes, str, int, str, bytes], other: tuple[bytes, str, int, str, bytes]
) -> None:
    tag = secret.sign(*one)
    assert len(tag) == secret.TAG_SIZE
    assert secret.verify(*one, tag)
    assert secret.verify(*other, tag) == (one == other)


def test_fields_do_not_run_into_each_other() -> None:
    key = b"k" * 32
    tags = [
        secret.sign(key, "ab", 1, "c", b"d"),
        secret.sign(key, "a", 1, "bc", b"d"),
        secret.sign(key, "ab", 1, "cd", b""),
        secret.sign(key, "ab1", 1, "c", b"d"),
        secret.sign(key, "ab", 11, "c", b"d"),
    ]
    assert len(set(tags)) == len(tags)
