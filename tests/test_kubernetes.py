"""The manifests of docs/kubernetes.md: right by Kubernetes' own schema, and by what `init` makes of their variables."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectives.rendezvous.bootstrap import bootstrap
from tests.rendezvous.processes import environment

yaml = pytest.importorskip("yaml", reason="reading manifests: pip install pyyaml")

FOLDER = Path(__file__).parents[1] / "examples" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
OLDEST, NEWEST = "1.28", "1.37"  # batch.kubernetes.io/controller-uid came with 1.27
RANK = """
import numpy as np, collectives
with collectives.init(timeout=60) as comm:
    print(comm.rank, comm.size, comm.allreduce(np.array([comm.rank]))[0])
"""


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def only(path: Path, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


def variables(path: Path, index: int) -> dict[str, str]:
    """The environment of the Pod with that index, as Kubernetes makes it."""
    (container,) = only(path, "Job")["spec"]["template"]["spec"]["containers"]
    found = {"JOB_COMPLETION_INDEX": str(index)}
    for entry in container["env"]:
        if "value" in entry:
            value = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], entry["value"])
        elif "secretKeyRef" in entry["valueFrom"]:
            value = "a-password"
        else:
            assert (
                entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['batch.kubernetes.io/controller-uid']"
            )
            value = "1f0c7e5e-6b0f-4d57-8f5a-0a7bb0b6c1c1"
        found[entry["name"]] = value
    return found


def test_there_are_manifests() -> None:
    assert [path.name for path in MANIFESTS] == ["job-redis.yaml", "job.yaml"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_valid(path: Path, version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for document in documents(path):
        schemas.validate(document, version, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_what_has_to_agree_agrees(path: Path) -> None:
    job, service = only(path, "Job"), only(path, "Service")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    size = job["spec"]["completions"]
    assert job["spec"]["completionMode"] == "Indexed" and job["spec"]["parallelism"] == size
    store = variables(path, 0)["COLLECTIVES_STORE"]
    host = re.fullmatch(r"(\w+)://(?::a-password@)?([\w.-]+):(\d+)", store)
    assert host is not None
    if host[1] == "tcp":  # a name that a headless Service gives to the Pod of index 0
        assert host[2] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
        assert pod["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    else:
        assert host[1] == "redis" and host[2] == service["metadata"]["name"]
        assert service["spec"]["ports"] == [{"port": int(host[3])}]
        labels = only(path, "Deployment")["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"] == labels
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert mount["name"] == volume["name"] and mount["readOnly"] is True
    key = re.search(r"create secret generic (\S+) --from-file=(\S+)", path.read_text())
    assert key is not None and volume["secret"] == {"secretName": key[1], "defaultMode": 0o400}
    assert variables(path, 0)["COLLECTIVES_SECRET_FILE"] == f"{mount['mountPath']}/{key[2]}"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_what_init_makes_of_it(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    key.write_bytes(secrets.token_bytes(31) + b".")  # a line break at the end would not count
    key.chmod(0o400)
    size = only(path, "Job")["spec"]["completions"]
    for index in range(size):
        launch = bootstrap(env={**variables(path, index), "COLLECTIVES_SECRET_FILE": str(key)})
        assert (launch.launcher, launch.rank, launch.size) == ("kubernetes", index, size)
        assert launch.secret == key.read_bytes() and launch.run_id


def test_its_ranks_meet(tmp_path: Path) -> None:
    """With all that the manifest says, but the names of Pods and volumes, which there are in a cluster only."""
    path = FOLDER / "job.yaml"
    key = tmp_path / "job.key"
    key.write_bytes(secrets.token_bytes(31) + b".")  # a line break at the end would not count
    key.chmod(0o400)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        store = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    size = only(path, "Job")["spec"]["completions"]
    base = {name: value for name, value in environment().items() if not name.startswith("COLLECTIVES_")}
    here = {"COLLECTIVES_SECRET_FILE": str(key), "COLLECTIVES_STORE": store, "COLLECTIVES_CALIBRATE": "off"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**base, **variables(path, index), **here},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(size)
    ]
    try:
        message = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [output for output, _ in message] == [f"{rank} {size} 6\n" for rank in range(size)], message
