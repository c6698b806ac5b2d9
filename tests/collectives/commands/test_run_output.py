"""`collectives run`: how the output of many ranks comes together in a pipe, a file and on a terminal.

Invariant: every process started here is waited for, and every wait has a deadline.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectives.commands import main as cli

ROOT = Path(cli.__file__).parents[2]
ENTRY = "from collectives.commands.main import main; main(prog_name='collectives')"
DEADLINE = 30.0


def command(*arguments: str) -> list[str]:
    quiet = ("--addresses", "random")  # the launcher has nothing to say about them
    return [sys.executable, "-c", ENTRY, "run", *quiet, *arguments]


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_") and k != "NO_COLOR"}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TERM": "xterm",
        "COLLECTIVES_CALIBRATE": "off",
        **extra,
    }


def output(*arguments: str) -> bytes:
    result = subprocess.run(
        command(*arguments),
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment(),
        timeout=DEADLINE,
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


def test_each_line_carries_its_rank_and_keeps_its_stream() -> None:
    script = "echo out $COLLECTIVES_RANK; echo error $COLLECTIVES_RANK >&2"
    result = subprocess.run(
        command("-n", "11", "sh", "-c", script), capture_output=True, env=environment(), timeout=DEADLINE, check=True
    )
    assert sorted(result.stdout.splitlines()) == [b"[%2d] out %d" % (r, r) for r in range(11)]
    assert sorted(result.stderr.splitlines()) == [b"[%2d] error %d" % (r, r) for r in range(11)]


def test_a_last_line_without_newline() -> None:
    assert output("-n", "1", "printf", "a\\nb") == b"[0] a\n[0] b\n"
    assert output("-n", "1", "--no-prefix", "printf", "a\\nb") == b"a\nb"
    both = output("-n", "2", "--no-prefix", "sh", "-c", "printf $COLLECTIVES_RANK")
    assert sorted(both.split(b"\n")) == [b"0", b"1"]


def test_bytes_are_unchanged() -> None:
    everything = bytes(range(256)) * 3 + b"\r\n\xff\xfe\r"
    script = f"import sys; sys.stdout.buffer.write({everything!r})"
    assert output("-n", "1", "--no-prefix", sys.executable, "-c", script) == everything
    marked = output("-n", "1", sys.executable, "-c", script)
    assert marked == b"".join(b"[0] " + line + b"\n" for line in everything.split(b"\n"))


def test_much_output_of_many_ranks_never_mixes() -> None:
    script = """
import os, sys
rank = int(os.environ["COLLECTIVES_RANK"])
for i in range(4000):
    line = f"{rank} {i} " + "x" * (i * 7919 % 300)
    for piece in (line[:5], line[5:] + "\\n"):  # two writes, to tempt the launcher
        os.write(1 + i % 2, piece.encode())
"""
    result = subprocess.run(
        command("-n", "4", sys.executable, "-c", script),
        check=False,
        capture_output=True,
        env=environment(),
        timeout=DEADLINE,
    )
    assert result.returncode == 0
    for stream, parity in ((result.stdout, 0), (result.stderr, 1)):
        lines = stream.splitlines()
        for rank in range(4):
            own = [line[4:] for line in lines if line.startswith(b"[%d] " % rank)]
            assert own == [b"%d %d " % (rank, i) + b"x" * (i * 7919 % 300) for i in range(parity, 4000, 2)]
        assert len(lines) == 4 * 2000


def test_both_streams_into_one_file_keep_lines_whole(tmp_path: Path) -> None:
    script = "import os\nfor i in range(3000):\n  for p in (b'a' * 50, b'b' * 50 + b'\\n'): os.write(1 + i % 2, p)"
    with open(tmp_path / "log", "wb") as log:
        done = subprocess.run(
            command("-n", "3", sys.executable, "-c", script),
            check=False,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(),
            timeout=DEADLINE,
        )
    assert done.returncode == 0
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert {line[4:] for line in lines} == {b"a" * 50 + b"b" * 50}
    assert len(lines) == 9000


def test_a_line_of_megabytes_comes_whole() -> None:
    script = "import sys; sys.stdout.write('x' * 3_000_000 + '\\n' + 'y')"
    assert output("-n", "1", sys.executable, "-c", script) == b"[0] " + b"x" * 3_000_000 + b"\n[0] y\n"


def test_the_launcher_stays_responsive_and_small_when_nobody_reads() -> None:
    """A rank writes without end; the pipe is full; SIGTERM still works, and memory has not grown."""
    launcher = subprocess.Popen(
        command("-n", "1", "sh", "-c", "echo ready >&2; exec yes"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert launcher.stderr is not None and launcher.stdout is not None
    try:
        assert launcher.stderr.readline() == b"[0] ready\n"
        poll = select.poll()
        poll.register(launcher.stdout, select.POLLIN)
        assert poll.poll(DEADLINE * 1000)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(DEADLINE) == 128 + signal.SIGTERM
        assert len(launcher.stdout.read()) < 1 << 20
    finally:
        launcher.kill()
        launcher.communicate(timeout=DEADLINE)


def test_a_reader_that_goes_away_ends_the_job() -> None:
    launcher = subprocess.Popen(
        command("-n", "2", "yes"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline()[3:] == b" y\n"
    launcher.stdout.close()
    _, errors = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 128 + signal.SIGPIPE
    assert b"was killed by SIGPIPE" in errors


class Terminal:
    """A launcher on a terminal, and what the terminal has been sent."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.seen = b""
        self._process = subprocess.Popen(
            command(*arguments), stdin=slave, stdout=slave, stderr=slave, env=environment(**env)
        )
        os.close(slave)

    def expect(self, pattern: bytes) -> None:
        """Read until `pattern` has been seen."""
        end = time.monotonic() + DEADLINE
        while not re.search(pattern, self.seen):
            assert self._read(end), f"{pattern!r} not in {self.seen!r}"

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def rest(self) -> bytes:
        """Everything, once the launcher has ended well."""
        end = time.monotonic() + DEADLINE
        while self._read(end):
            pass
        assert self._process.wait(DEADLINE) == 0, self.seen
        return self.seen.replace(b"\r\n", b"\n")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)
        os.close(self._master)

    def _read(self, end: float) -> bool:
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        assert poll.poll(max(0.0, end - time.monotonic()) * 1000), f"silence after {self.seen!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux: EIO once the other side is closed
            return False
        self.seen += data
        return bool(data)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_ranks_have_colours_on_a_terminal_unless_unwanted(terminals: list[Terminal]) -> None:
    terminals.append(coloured := Terminal("-n", "2", "sh", "-c", "echo hello"))
    assert sorted(coloured.rest().splitlines()) == [b"\x1b[33m[1]\x1b[0m hello", b"\x1b[36m[0]\x1b[0m hello"]
    terminals.append(plain := Terminal("-n", "2", "sh", "-c", "echo hello", NO_COLOR="1"))
    assert sorted(plain.rest().splitlines()) == [b"[0] hello", b"[1] hello"]


def test_a_question_is_seen_before_it_is_answered(terminals: list[Terminal]) -> None:
    script = "printf 'name? '; read name; echo; echo hello $name"
    terminals.append(terminal := Terminal("-n", "1", "sh", "-c", script, NO_COLOR="1"))
    terminal.expect(rb"\[0\] name\? ")
    terminal.type(b"Ada\n")
    assert terminal.rest().endswith(b"[0] hello Ada\n")


def test_a_progress_bar_moves_and_other_lines_stay_whole(terminals: list[Terminal], tmp_path: Path) -> None:
    script = r"""
    if [ $COLLECTIVES_RANK = 0 ]
    then printf '10%%\r'; read x; printf '20%%\r'; read x; printf '100%%\rdone\n'
    else read x <$FIFO; echo other; fi"""
    os.mkfifo(tmp_path / "fifo")
    fifo = ("--env", f"FIFO={tmp_path / 'fifo'}")
    terminals.append(terminal := Terminal("-n", "2", *fifo, "sh", "-c", script, NO_COLOR="1"))
    terminal.expect(rb"\r\x1b\[K\[0\] 10%")
    with open(tmp_path / "fifo", "w") as gate:
        gate.write("go\n")
    terminal.expect(rb"\r\x1b\[K\[1\] other\r\n")
    terminal.type(b"\n")
    terminal.expect(rb"\r\x1b\[K\[0\] 20%")
    terminal.type(b"\n")
    assert terminal.rest().endswith(b"\r\x1b[K[0] done\n")
