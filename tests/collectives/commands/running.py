"""How tests start `collectives run`, and what they ask of the processes that it starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from collectives.commands import main as cli

ROOT = Path(cli.__file__).parents[2]
ENTRY = "from collectives.commands.main import main; main(prog_name='collectives')"
DEADLINE = 30.0
GRACEFUL = ("--grace", "20")  # long enough that nobody is stopped who is about to end

SHOW = """
import json, os, stat
secret = os.environ["COLLECTIVES_SECRET_FILE"]
print(json.dumps({
    "env": dict(os.environ),
    "cores": sorted(os.sched_getaffinity(0)),
    "mode": stat.S_IMODE(os.stat(secret).st_mode),
    "folder": stat.S_IMODE(os.stat(os.path.dirname(secret)).st_mode),
    "secret": open(secret).read().strip(),
    "group": os.getpgrp() == os.getpid(),
    "session": os.getsid(0),
    "argv": open("/proc/self/cmdline").read(),
}))
"""

PAIR = """
import os, signal, subprocess, sys
number, child = int(sys.argv[1]), len(sys.argv) > 2
started = [] if child else [subprocess.Popen([sys.executable, __file__, str(number), "child"])]
signal.signal(number, lambda *_: sys.exit(max([p.wait() for p in started], default=0)))
print(os.getpid())
signal.pause()
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", ENTRY, "run", *arguments]


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLECTIVES_", "OMP_", "PYTHONUNBUFFERED"))}
    return {**kept, "PYTHONPATH": str(ROOT), "COLLECTIVES_CALIBRATE": "off", **extra}


def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments),
        check=False,
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(**env),
        timeout=DEADLINE,
    )


def shown(result: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    """What `SHOW` printed, by rank."""
    assert result.returncode == 0, result.stderr.decode()
    lines = [re.fullmatch(rb"\[ *(\d+)\] (.*)", line) for line in result.stdout.splitlines()]
    return [json.loads(m[2]) for m in sorted((m for m in lines if m), key=lambda m: int(m[1]))]


def gone(pid: int) -> bool:
    """Whether process `pid` has ended (nobody may have reaped it yet)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def numbers(process: subprocess.Popen[bytes], lines: int) -> list[int]:
    """The process numbers that the ranks print, one per line."""
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[-1]) for _ in range(lines)]


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=DEADLINE)
    return process.returncode, errors.decode()


# What a rank is given
