"""Which tests share a process, and which begin first: `pytest -n auto --dist loadfile`.

Invariant: the tests of a file run one after another in one worker process, and so do those of files that are TOGETHER;
only files that are DIVIDED are not of one process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# What reads the output of one job: to import TensorFlow in every rank takes longer than their tests.
TOGETHER: Final = {
    "tests/collectives/horovod/test_keras.py": "horovod with TensorFlow",
    "tests/collectives/horovod/test_tensorflow.py": "horovod with TensorFlow",
}

# Too long for one process; the parameters of each test begin with a transport, and those of one go together.
DIVIDED: Final = frozenset({"tests/collectives/conformance/test_conformance.py"})

# Files that take more than half a minute, most of them in jobs whose ranks import a framework and keep all cores busy.
# They begin first, or the last of them runs while the other processes have ended, and one at a time, or they take each
# other's time until deadlines are missed. Everything else runs beside them, files with many tests first.
LONG: Final = frozenset(
    {
        "horovod with TensorFlow",
        "tests/collectives/horovod/test_torch.py",
        "tests/collectives/keras/test_backends.py",
        "tests/collectives/keras/test_callbacks.py",
        "tests/collectives/keras/test_fit.py",
        "tests/collectives/schedule/test_algorithms.py",
        "tests/collectives/tensorflow/test_tensorflow.py",
        "tests/collectives/torch/test_distributed_test.py",
        "tests/collectives/torch/test_process_group.py",
        "tests/test_docs.py",
        "tests/test_examples_frameworks.py",
    }
)


def workers() -> int:
    """How many processes: more than cores, since many tests wait most of the time."""
    return min(len(os.sched_getaffinity(0)) + 1, 12)


def unit(nodeid: str) -> str:
    """What a test belongs to: the tests of a unit run in one process, in the order in which they were collected."""
    file, _, name = nodeid.partition("::")
    if file in DIVIDED:
        return f"{file} {name.partition('[')[2].partition('-')[0]}"
    return TOGETHER.get(file, file)


class Scheduler(LoadScopeScheduling):
    """Hands out units: a long one where no other process has one, else those with many tests."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _has_long(self, node: WorkerController) -> bool:
        units = self.assigned_work[node]
        return any(name in LONG and not all(tests.values()) for name, tests in units.items())

    def _assign_work_unit(self, node: WorkerController) -> None:
        wants_long = not any(self._has_long(other) for other in self.nodes if other is not node)
        chosen = next((name for name in self.workqueue if (name in LONG) == wants_long), None)
        if chosen is not None:
            self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
