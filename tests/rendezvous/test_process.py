"""Who has ended is known as soon as anybody can have noticed it."""

from __future__ import annotations

import os
import socket
import subprocess

from collectives.rendezvous import _process


def test_a_process_whose_socket_is_closed_is_known_to_have_ended() -> None:
    for _ in range(50):
        ours, theirs = socket.socketpair()
        with ours, theirs, subprocess.Popen(["sleep", "60"], pass_fds=[theirs.fileno()]) as process:
            try:
                origin = _process._origin(process.pid)
                assert origin and not _process.is_gone(origin)
                theirs.close()
                process.kill()
                assert ours.recv(1) == b""
                assert _process.is_gone(origin)
            finally:
                process.kill()


def test_this_process_has_not_ended() -> None:
    assert not _process.is_gone(_process.origin())
    assert _process._origin(os.getpid()) == _process.origin()
