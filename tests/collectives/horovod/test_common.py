"""What every one of Horovod's modules has, without a framework: ranks, sets of them, objects, launching, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import collectives
from collectives import horovod
from collectives.horovod import common as hvd
from collectives.horovod import elastic, options, reductions
from collectives.horovod.compression import Compressor, NoneCompressor, is_custom, wire
from collectives.horovod.horovodrun import refuse_elastic
from collectives.horovod.process_sets import ProcessSet
from tests.collectives.horovod.results import Results

HOME = Path(collectives.__file__).parents[1]


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(3, "worker_common.py")


# --- ranks


def test_before_init(results: Results) -> None:
    initialized, errors = results.same("before_init")
    assert not initialized
    for error in errors:
        assert error == {
            "error": "NotInitializedError",
            "says": "Horovod has not been initialized; use hvd.init().",
        }


def test_numbers_of_ranks(results: Results) -> None:
    for rank, (initialized, alike, own, everyone) in enumerate(results["numbers"]):
        assert initialized and alike == [3, 3, 1, 0, True]
        assert own == [rank, rank] and everyone == [3, rank, True]


def test_process_sets(results: Results) -> None:
    for rank, found in enumerate(results["sets"]):
        inside = rank != 1
        assert found["numbers"] == [1, 2, 2, inside, not inside]
        assert found["alone"] == (2 if inside else 1)
        assert found["root"] == [1, {"error": "ValueError", "says": found["root"][1]["says"]}]
        assert "is not a rank of" in found["root"][1]["says"]
        assert found["by number"] and not found["global stays"]
        assert found["removed"] == [True, False, None, None]
        if inside:
            assert found["sum"] == 4 and found["objects"] == {"rank": 2} and found["rank"] == rank // 2
        else:
            assert all("rank 1 is not part of" in error["says"] for error in found["outside"])


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("twice", "ValueError", "duplicate process set"),
        ("all", "ValueError", "duplicate process set"),
        ("unknown", "ValueError", "ranks 0 to 2"),
        ("different", "DesyncError", "rank 0: [0], rank 1: [1], rank 2: [2]"),
        ("unregistered", "ValueError", "hvd.add_process_set"),
    ],
)
def test_process_sets_that_cannot_be(results: Results, what: str, error: str, says: str) -> None:
    for found in results["sets"]:
        assert found[what]["error"] == error and says in found[what]["says"]


def test_objects(results: Results) -> None:
    everyones = [{"rank": rank, "none": None, "list": [1, 2.5, "x"]} for rank in range(3)]
    for rank, (from_2, gathered, received, refused) in enumerate(results["objects_that_travel"]):
        assert from_2 == everyones[2] and gathered == everyones and received
        if rank == 0:
            assert refused["error"] == "TypeError"
            assert "a object cannot travel" in refused["says"] and "Horovod pickles any object" in refused["says"]
        else:
            assert refused["error"] == "Aborted" and "rank 0" in refused["says"]


def test_some_of_the_ranks(results: Results) -> None:
    for rank, (gone, error, found) in enumerate(results["some_of_the_ranks"]):
        assert gone[0] is False and gone[1]["error"] == "NotInitializedError"
        if rank == 0:
            assert error["error"] == "ValueError" and "this is rank 0" in error["says"] and found is None
        else:
            assert error == {} and found == [rank - 1, 2, ["here", "here"]]


def test_communicators_of_the_users_stay_open(results: Results) -> None:
    found, several = results.same("communicators_of_the_users")
    assert found == [[3, 2], [False, False]] * 2
    assert several["error"] == "RuntimeError" and "pass the one to use" in several["says"]


def test_what_init_refuses(results: Results) -> None:
    (comm, sets, lists, *_), *others = results["refused"]
    assert all(other[:2] == [comm, sets] for other in others)
    assert [error["error"] for error in lists] == ["ValueError", "ValueError", "ConfigMismatch", "ConfigMismatch"]
    assert "ranks 0 to 2" in lists[2]["says"] and "1 ranks came with this list" in lists[3]["says"]
    assert [other[2][3] for other in others] == [{}, {}]  # whose lists were as they said
    assert comm["error"] == "NotImplementedError" and "collectives.Communicator" in comm["says"]
    assert sets["error"] == "ValueError" and "'dynamic'" in sets["says"]


def test_init_that_raises_leaves_nothing_registered(results: Results) -> None:
    for _, _, _, wrong, corrected in results["refused"]:
        assert [error["error"] for error in wrong] == [*["ValueError"] * 2, "DesyncError", *["ValueError"] * 2]
        assert "duplicate process set" in wrong[0]["says"] and "duplicate process set" in wrong[4]["says"]
        assert corrected == [[False, 0], [[0, 1], [0, 2]]]


# --- launching


def _horovodrun(**changed: str) -> dict[str, str]:
    """As `horovodrun --gloo -np 2` sets them for rank 1, on one host."""
    results = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    results |= {"GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "GLOO_RENDEZVOUS_PORT": "4242", "CONTROLLER": "gloo", **changed}
    return {f"HOROVOD_{name}": value for name, value in results.items()}


def test_elastic_jobs_are_refused() -> None:
    refuse_elastic(_horovodrun())
    with pytest.raises(NotImplementedError, match="HOROVOD_ELASTIC"):
        refuse_elastic(_horovodrun(ELASTIC="1"))


SCRIPT = """
import json
import numpy as np
from collectives.horovod import common as hvd
hvd.init()
print(json.dumps([hvd.rank(), hvd.size(), hvd.global_process_set.group().allreduce(np.array(hvd.rank() + 1)).tolist()]))
hvd.shutdown()
"""


def test_ranks_that_horovodrun_starts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    job = {"GLOO_RENDEZVOUS_PORT": str(os.getpid())}
    started = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py")],
            stdout=subprocess.PIPE,
            env={
                **kept,
                **_horovodrun(RANK=str(rank), LOCAL_RANK=str(rank), **job),
                "PYTHONPATH": str(HOME),
                "COLLECTIVES_CALIBRATE": "off",
            },
        )
        for rank in range(2)
    ]
    results: list[Any] = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    assert results == [[0, 2, 3], [1, 2, 3]]


# --- refusals and hints


def test_what_is_not_inside() -> None:
    answers = [hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.gloo_enabled(), hvd.nccl_built()]
    assert not any([*answers, hvd.ddl_built(), hvd.ccl_built(), hvd.cuda_built(), hvd.rocm_built()])
    with pytest.raises(ValueError, match="MPI is not in use"):
        hvd.mpi_threads_supported()


def test_what_is_not_there_says_what_to_use() -> None:
    with pytest.raises(NotImplementedError, match="collectives run"):
        horovod.run(print, np=2)
    with pytest.raises(NotImplementedError, match=r"hvd.elastic.run.*PeerLost"):
        elastic.run  # noqa: B018
    assert not hasattr(elastic, "__wrapped__")
    with pytest.raises(NotImplementedError, match="learning rate"):
        reductions.op_name(hvd.Adasum)
    for never in (3, "ranks", [0, 0], [-1], [0, "1"]):
        with pytest.raises(ValueError, match="made of"):
            ProcessSet(never)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [
        ("tensorflow", "tensorflow", "tensorflow"),
        ("tensorflow.keras", "tensorflow", "tensorflow"),
        ("keras", "keras", "keras"),
        ("torch", "torch", "torch"),
    ],
)
def test_a_missing_framework(module: str, framework: str, extra: str) -> None:
    program = f"import sys; sys.modules[{framework!r}] = None; import collectives.horovod.{module}"
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, env=env, timeout=60)
    assert done.returncode == 1 and f"pip install {extra}" in done.stderr.decode()


def test_reductions() -> None:
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert reductions.op_name() == "average"
    named = [reductions.op_name(op) for op in (0, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)]
    assert named == ["average", "sum", "min", "max", "prod"]
    for average, name in ((True, "average"), (False, "sum")):
        with pytest.warns(DeprecationWarning, match="replaced by `op`"):
            assert reductions.op_name(None, average) == name
    with pytest.raises(ValueError, match="supersedes average"):
        reductions.op_name(hvd.Sum, False)
    with pytest.raises(ValueError, match="not 7"):
        reductions.op_name(7)
    with pytest.raises(ValueError, match="Average or Sum"):
        reductions.training_op(hvd.Min)


def test_hints_are_told_of() -> None:
    for num_groups, groups in ((2, None), (0, 3), (0, [["a"]])):
        with pytest.warns(UserWarning, match="buckets"):
            options.check_groups(num_groups, groups)
    with pytest.raises(ValueError, match="groups must be"):
        options.check_groups(0, 0)
    options.check_groups(0, None)
    options.check_devices("", "/cpu:0", "/device:CPU:0")
    with pytest.warns(UserWarning, match="/gpu:0"):
        options.check_devices("", "/gpu:0")


def test_predivision() -> None:
    assert options.predivided(hvd.Average, 4.0) == (0.25, 4.0)
    assert options.predivided(hvd.Sum, 1.0) == (1.0, 1.0)
    with pytest.raises(ValueError, match="op != Average"):
        options.predivided(hvd.Sum, 2.0)
    with pytest.raises(ValueError, match="more than 0"):
        options.predivided(hvd.Average, 0.0)


def test_compressors() -> None:
    class Own(Compressor):
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return tensor, None

    assert is_custom(Own) and wire(Own) is None
    assert not is_custom(NoneCompressor) and wire(NoneCompressor) is None
    with pytest.raises(TypeError, match="'fp16'"):
        wire("fp16")
