"""Runs the examples of docs/launchers.md: each launcher starts the program on that page with the command there.

    python -m tools.check_launchers                       # all
    python -m tools.check_launchers openmpi slurm         # only these
    python -m tools.check_launchers --untested            # without those that tests/test_launchers.py runs
    python -m tools.check_launchers --keep ~/.cache/pycollectives/launchers

Invariant: the commands are taken from the page. Each runs in a folder of its own; if it installs something, it gets an
environment of its own, which sees the packages of the Python that runs this. A check ends everything that it starts.
The exit code is 1 if a launcher fails. A launcher that is missing here is listed with what it needs, and is a failure
if it was named in the command line.

Slurm's daemons (Debian: slurmctld slurmd slurm-client munge) are started here, as two nodes of this machine; that needs
root.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "launchers.md"
RANKS: Final = 4
LIMIT: Final = 240.0  # seconds for one command; those that install may take long

_ALLOW: Final = {
    f"{who}_{what}": "1" for who in ("OMPI", "PRTE") for what in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")
}
# Settings for more ranks than cores, and for root, as the page has them for Open MPI.
_OPENMPI: Final = {**_ALLOW, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


class NotHereError(Exception):
    """The launcher cannot run on this machine. The message says what is missing."""


class WrongError(Exception):
    """The launcher did not do what the page says."""


# --- the page


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{PAGE.name} has no section {title!r}"
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def program() -> str:
    return blocks(PAGE.read_text(), "python")[0]


# --- running


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment variables without those that launchers and tests set, and with `more` added."""
    ours = ("COLLECTIVES_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "OMP_NUM_THREADS")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "COLLECTIVES_CALIBRATE": "off", **more}


def call(command: str | Sequence[str], folder: Path, env: dict[str, str], fails: bool = False) -> str:
    """Run `command` in `folder` with the environment variables `env`, and return its output. A str is run by the shell.

    Raises: WrongError if the exit code is not 0. If `fails` is True, raises WrongError if the exit code is 0.
    """
    print(f"   $ {command if isinstance(command, str) else ' '.join(command)}", flush=True)
    try:
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            check=False,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise WrongError(f"no end within {LIMIT:g} s\n{error.stdout!r}") from error
    if (done.returncode != 0) != fails:
        raise WrongError(f"exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def ranks_of(output: str, here: int = RANKS) -> None:
    """Raise WrongError unless `output` shows that all ranks have run the example program.

    `here` is the number of ranks on one host.
    """
    wanted = sorted(f"rank {r} of {RANKS}, {here} here, sum {RANKS * (RANKS + 1) // 2}" for r in range(RANKS))
    found = sorted(re.findall(r"rank \d+ of \d+, \d+ here, sum \d+", output))
    if found != wanted:
        raise WrongError(f"expected {wanted}, found {found} in\n{output}")
    print(f"   {RANKS} ranks, sum {RANKS * (RANKS + 1) // 2}", flush=True)


@cache
def installed(title: str, name: str, keep: Path) -> tuple[list[str], Path]:
    """Run the pip commands of a section of docs/launchers.md, in a new virtual environment.

    `title` is the title of the section. The environment is called `name` and lies in the folder `keep`. Return the
    section's other commands, and the environment's bin folder. Raises: NotHereError if pip fails.
    """
    lines = blocks(section(title), "console")[0].splitlines()
    venv = keep / f"venv-{name}"
    if not (venv / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=LIMIT)
        packages = sysconfig.get_path("purelib", vars={"base": str(venv)})
        here = sysconfig.get_path("purelib")
        Path(packages, "zz_these.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        (venv / "bin" / "pip").write_text(f'#!/bin/sh\nexec "{venv}/bin/python" -m pip "$@"\n')
        (venv / "bin" / "pip").chmod(0o755)
    env = environment(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_QUIET="1", PIP_NO_COMPILE="1")
    env["PATH"] = f"{venv / 'bin'}{os.pathsep}{env['PATH']}"
    for line in lines:
        if line.startswith("pip "):
            try:
                call(line, keep, env)
            except WrongError as error:
                raise NotHereError(f"{line}: {error}") from error
    return [line for line in lines if not line.startswith("pip ")], venv / "bin"


# --- the launchers


def collectives_run(folder: Path, keep: Path) -> None:
    (line,) = blocks(section("collectives run"), "console")
    ranks_of(call(line, folder, environment()))


def torchrun(folder: Path, keep: Path) -> None:
    try:
        import torch.distributed.run  # noqa: F401
    except ImportError:
        raise NotHereError("pip install torch") from None
    line = blocks(section("torchrun"), "console")[0]
    # If torch is installed in another environment, the program torchrun may be missing here.
    line = line if shutil.which("torchrun") else line.replace("torchrun", "python -m torch.distributed.run", 1)
    ranks_of(call(line, folder, environment()))


def _mpi(title: str, name: str, folder: Path, keep: Path) -> None:
    lines, programs = installed(title, name, keep)
    env = environment(**_OPENMPI)
    env["PATH"] = f"{programs}{os.pathsep}{env['PATH']}"
    show = "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0].strip(chr(0)))"
    print("  ", call([str(programs / "python"), "-c", show], folder, env).strip(), flush=True)
    for line in lines:
        ranks_of(call(line, folder, env))
        ranks_of(call(line, folder, {**env, "COLLECTIVES_STORE": "mpi://"}))


def openmpi(folder: Path, keep: Path) -> None:
    _mpi("Open MPI", "openmpi", folder, keep)


def mpich(folder: Path, keep: Path) -> None:
    _mpi("MPICH", "mpich", folder, keep)


def impi(folder: Path, keep: Path) -> None:
    _mpi("Intel MPI", "impi", folder, keep)


def mixed(folder: Path, keep: Path) -> None:
    """Check the error that is raised if mpirun and mpi4py belong to different MPI libraries.

    It must name both libraries. `folder` is an empty folder for the test, `keep` the folder for virtual environments.
    """
    (_, openmpi_programs), (_, mpich_programs) = (
        installed("Open MPI", "openmpi", keep),
        installed("MPICH", "mpich", keep),
    )
    env = environment(**_OPENMPI)
    env["PATH"] = f"{mpich_programs}{os.pathsep}{env['PATH']}"
    printed = call(f"mpirun -n {RANKS} {openmpi_programs / 'python'} train.py", folder, env, fails=True)
    if not re.search(r"ConfigMismatch: .*PMI_RANK=\d and PMI_SIZE=4.*Open MPI", printed):
        raise WrongError(printed)
    print("   ConfigMismatch, which names both", flush=True)


def slurm(folder: Path, keep: Path) -> None:
    with _slurm_cluster(folder / "cluster") as env:
        (line,) = blocks(section("Slurm"), "console")
        print("  ", call(["srun", "--version"], folder, env).strip(), flush=True)
        ranks_of(call(line, folder, env))
        ranks_of(call(line.replace("srun", "srun --mpi=pmi2"), folder, env))
        (script,) = blocks(section("Slurm"), "bash")
        (folder / "batch.sh").write_text(script)
        call(["sbatch", "--wait", "--output=batch.out", "batch.sh"], folder, env)
        ranks_of((folder / "batch.out").read_text())
        # Neither the batch script nor an interactive shell is a rank.
        for alone in (
            f"salloc -n {RANKS} python train.py",
            f"sbatch --wait -n {RANKS} -o alone.out --wrap='python train.py'",
        ):
            printed = call(alone, folder, env) + "".join(path.read_text() for path in folder.glob("alone.out"))
            if "rank 0 of 1, 1 here, sum 1" not in printed:
                raise WrongError(printed)
        print("   a shell and a batch script are no ranks", flush=True)


@contextmanager
def _slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm cluster of two nodes, both this machine; only processes that Slurm starts know the nodes' names."""
    if lacking := [name for name in ("slurmctld", "slurmd", "srun", "munged") if shutil.which(name) is None]:
        raise NotHereError(f"no {', '.join(lacking)}: apt install slurmctld slurmd slurm-client munge")
    if os.geteuid() != 0:
        raise NotHereError("Slurm's daemons are started by root")
    folder.mkdir()
    host = os.uname().nodename
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    (folder / "hosts").write_text(f"127.0.0.1 localhost {host}\n127.0.0.1 n1 n2\n")
    (folder / "slurm.conf").write_text(_SLURM_CONF.format(host=host, folder=folder))
    env = environment(SLURM_CONF=str(folder / "slurm.conf"))
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--{what}-file={folder}/munge.{what}" for what in ("pid", "log", "seed")]
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    inside = ["unshare", "-m", "sh", "-c", f'mount --bind {folder}/hosts /etc/hosts && exec "$@"', "sh"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in (munge, ["slurmctld", "-c", "-D"], *([*inside, "slurmd", "-N", n, "-D"] for n in ("n1", "n2"))):
            with open(folder / f"{len(started)}.out", "wb") as out:
                started.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        # Wait for the daemons: srun retries until the nodes are available.
        call(["srun", "-N", "2", "true"], folder, env)
        yield env
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_SLURM_CONF: Final = """\
ClusterName=check
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[16818-16819] CPUs=8
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES
"""


def multiprocessing(folder: Path, keep: Path) -> None:
    text = section("multiprocessing")
    (folder / "jobs.py").write_text(blocks(text, "python")[0])
    for line in blocks(text, "console")[0].splitlines():
        ranks_of(call(line, folder, environment()))


def pytest(folder: Path, keep: Path) -> None:
    text = section("pytest")
    for name, code in zip(("conftest.py", "test_sum.py"), blocks(text, "python"), strict=True):
        (folder / name).write_text(code)
    (line,) = blocks(text, "console")
    passed = len(re.findall("1 passed", call(line, folder, environment())))
    if passed != RANKS:
        raise WrongError(f"passed on {passed} ranks")
    print(f"   passed on {RANKS} ranks", flush=True)
    failing = (folder / "test_sum.py").read_text().replace("assert ", "assert comm.rank != 2 and ")
    (folder / "test_sum.py").write_text(failing)
    printed = call(line, folder, environment(), fails=True)
    if not re.search(r"rank 2 \(process \d+\) exited with code 1", printed):
        raise WrongError(printed)
    print("   a test that fails on rank 2 fails the job", flush=True)


LAUNCHERS: Final[dict[str, Callable[[Path, Path], None]]] = {
    check.__name__: check
    for check in (collectives_run, torchrun, openmpi, mpich, impi, mixed, slurm, multiprocessing, pytest)
}


TESTED: Final = ("collectives_run", "torchrun", "multiprocessing", "pytest")  # they need nothing to be installed


def run(name: str, keep: Path) -> None:
    """Run the example for the launcher `name` in a new temporary folder, and check its output.

    `keep` is the folder for virtual environments. Raises: NotHereError if the launcher cannot run on this machine;
    WrongError if the output is wrong.
    """
    with tempfile.TemporaryDirectory(prefix=f"launcher-{name}-") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "train.py").write_text(program())
        LAUNCHERS[name](Path(folder), keep)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="LAUNCHER", help=", ".join(LAUNCHERS))
    parser.add_argument("--untested", action="store_true", help="without those that tests/test_launchers.py runs")
    parser.add_argument("--keep", type=Path, help="where environments are kept for the next time")
    wanted = parser.parse_args()
    if unknown := set(wanted.names) - set(LAUNCHERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(LAUNCHERS)}")
    names = wanted.names or [name for name in LAUNCHERS if not (wanted.untested and name in TESTED)]
    failed, absent = [], []
    with tempfile.TemporaryDirectory(prefix="launchers-") as scratch:
        keep = (wanted.keep or Path(scratch)).resolve()
        keep.mkdir(parents=True, exist_ok=True)
        for name in names:
            print(f"== {name}", flush=True)
            try:
                run(name, keep)
            except NotHereError as error:
                print(f"   not here: {error}", flush=True)
                absent.append(name)
            except WrongError as error:
                print(f"   FAILED: {error}", flush=True)
                failed.append(name)
    passed = [name for name in names if name not in (*failed, *absent)]
    print(f"\npassed: {', '.join(passed) or 'none'}; not here: {', '.join(absent) or 'none'}; ", end="")
    print(f"failed: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed or (absent and wanted.names)))


if __name__ == "__main__":
    main()
