"""Secrets as Kubernetes and Docker mount them: read-only, of root, with modes that nobody inside can change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.rendezvous.processes import environment

# In a mount namespace of its own: a volume as kubelet makes it, files of a dated folder behind the link ..data.
MAKE = """
set -e
mount --make-rprivate /
mount -t {type} {source} /mnt
cd /mnt
mkdir -m 755 ..2026_11_27_05_11_25.1234567890
printf %s "{key}" > ..2026_11_27_05_11_25.1234567890/job.key
chmod {mode} ..2026_11_27_05_11_25.1234567890/job.key
chown {owner} ..2026_11_27_05_11_25.1234567890/job.key
ln -s ..2026_11_27_05_11_25.1234567890 ..data
ln -s ..data/job.key job.key
cd /
{remount}
exec "$@"
"""
READ = """
import os, sys
from collectives.native.errors import AuthError
from collectives.rendezvous import secret
os.setgroups([])
gid, uid = int(sys.argv[1]), int(sys.argv[2])
os.setgid(gid); os.setuid(uid)
try: print(secret.read("/mnt/job.key").hex())
except AuthError as error: print(error)
"""
KEY = "ab" * 32
REMOUNT = "mount -o remount,bind,ro /mnt"  # as kubelet mounts it into the container: the bind mount, not the volume


def read(
    mode: str,
    *,
    owner: str = "0:0",
    user: tuple[int, int] = (0, 0),
    kind: str = "tmpfs",
    source: str = "none",
    remount: str = REMOUNT,
) -> str:
    """What `secret.read` says in such a container, as the user (uid, gid)."""
    script = MAKE.format(type=kind, source=source, key=KEY, mode=mode, owner=owner, remount=remount)
    uid, gid = user
    command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", READ, str(gid), str(uid)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def mounts() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare (Debian's util-linux)")
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True, text=True
    )
    if tried.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {tried.stderr.strip()}")


@pytest.mark.parametrize("mode", ["0644", "0444", "0440", "0400", "0640"])
def test_a_secret_volume_works_with_its_usual_modes(mode: str) -> None:
    """0644 is Kubernetes' default, 0444 Docker's, 0440 what fsGroup makes of 0400."""
    assert read(mode) == KEY


@pytest.mark.parametrize(("mode", "owner"), [("0644", "0:0"), ("0440", "0:2000"), ("0640", "0:2000")])
def test_also_for_a_user_who_is_not_root(mode: str, owner: str) -> None:
    """0440 and a group of its own is what a defaultMode of 0400 becomes with an fsGroup."""
    assert read(mode, owner=owner, user=(1000, 2000)) == KEY


def test_what_only_root_may_read_says_what_to_give_the_pod() -> None:
    message = read("0400", user=(1000, 2000))
    assert "cannot be read: Permission denied" in message and "fsGroup" in message


@pytest.mark.parametrize("mode", ["0666", "0664", "0622"])
def test_what_others_may_write_is_refused(mode: str) -> None:
    message = read(mode)
    assert f"mode {mode}" in message and "defaultMode: 0400" in message and "chmod" not in message


def test_a_volume_that_is_not_read_only_is_a_directory_like_any_other() -> None:
    message = read("0644", remount="")
    assert "mode 0644 lets others" in message and "chmod 600 /mnt/job.key" in message


def test_somebody_elses_volume_is_refused() -> None:
    """Who can own a file there could have made the mount, in a user namespace, for others to fall into."""
    message = read("0644", owner="1234:1234")
    assert "mode 0644" in message and "read-only" in message


def test_a_disk_that_is_mounted_read_only_names_a_cure_that_works_there(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A file system that others can see elsewhere is no volume of secrets; and chmod does not help."""
    folder = tmp_path_factory.mktemp("disk")
    script = MAKE.replace("mount -t {type} {source} /mnt", "mount --bind {source} /mnt")
    text = script.format(type="", source=folder, key=KEY, mode="0644", owner="0:0", remount=REMOUNT)
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], check=True, capture_output=True, text=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        pytest.skip("the tests' folder is in memory itself")
    command = ["unshare", "--mount", "sh", "-c", text, "sh", sys.executable, "-c", READ, "0", "0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    assert "install -m 600 /mnt/job.key" in done.stdout and "chmod" not in done.stdout
