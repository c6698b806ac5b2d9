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

# What forks ranks from the process that has imported TensorFlow, which takes 10 s of processor time, or PyTorch, which
# takes 7 s with all that its ranks need. Two of Horovod's files also read the output of one job, and Keras on other
# backends is imported for two.
TOGETHER: Final = {
    "tests/collectives/horovod/test_backends.py": "TensorFlow",
    "tests/collectives/horovod/test_keras.py": "TensorFlow",
    "tests/collectives/horovod/test_tensorflow.py": "TensorFlow",
    "tests/collectives/horovod/test_torch.py": "PyTorch",
    "tests/collectives/keras/test_backends.py": "TensorFlow",
    "tests/collectives/keras/test_callbacks.py": "TensorFlow",
    "tests/collectives/keras/test_digits.py": "TensorFlow",
    "tests/collectives/keras/test_fit.py": "TensorFlow",
    "tests/collectives/tensorflow/test_tensorflow.py": "TensorFlow",
    "tests/collectives/torch/test_destroy.py": "PyTorch",
    "tests/collectives/torch/test_intake.py": "PyTorch",
    "tests/collectives/torch/test_process_group.py": "PyTorch",
    "tests/test_examples_frameworks.py": "TensorFlow",
    "tests/test_mnist_scaling.py": "TensorFlow",
}

# Too long for one process; the parameters of each test begin with a transport, and those of one go together.
DIVIDED: Final = frozenset({"tests/collectives/conformance/test_conformance.py"})

# Whose processes keep all cores busy, since their ranks import a framework or they have a pool of processes, and about
# how many seconds they take. They run one at a time, or they take each other's time until deadlines are missed.
BUSY: Final = {
    "PyTorch": 70,
    "TensorFlow": 250,
    "tests/bench/test_hooks.py": 60,
    "tests/collectives/jax/test_jax.py": 80,
    "tests/collectives/schedule/test_algorithms.py": 70,
    "tests/collectives/torch/test_distributed_test.py": 40,
    "tests/integrations/test_integrations.py": 70,
    "tests/test_docs.py": 20,
}

# Others that take more than half a minute. What is in neither table begins last, files with many tests first.
LONG: Final = {
    "tests/bench/test_choice.py": 40,
    "tests/bench/test_command.py": 80,
    "tests/bench/test_limits.py": 40,
    "tests/bench/test_peers.py": 50,
    "tests/bench/test_plot.py": 60,
    "tests/bench/test_rank_threads.py": 60,
    "tests/bench/test_simulator.py": 40,
    "tests/bench/test_wire.py": 40,
    "tests/collectives/calibration/test_calibration_noise.py": 70,
    "tests/collectives/commands/test_doctor.py": 70,
    "tests/collectives/commands/test_explain_command.py": 40,
    "tests/collectives/conformance/test_conformance.py inproc": 90,
    "tests/collectives/conformance/test_conformance.py shm": 160,
    "tests/collectives/conformance/test_conformance.py tcp": 140,
    "tests/collectives/conformance/test_conformance.py vm": 80,
    "tests/collectives/core/test_boot_id.py": 40,
    "tests/collectives/core/test_communicator_errors.py": 100,
    "tests/collectives/core/test_communicator_life.py": 40,
    "tests/collectives/core/test_desync.py": 140,
    "tests/collectives/core/test_init.py": 80,
    "tests/collectives/core/test_init_processes.py": 80,
    "tests/collectives/core/test_job.py": 40,
    "tests/collectives/core/test_links.py": 40,
    "tests/collectives/core/test_recorded.py": 60,
    "tests/collectives/engines/test_pulled.py": 30,
    "tests/collectives/engines/test_sequences.py": 40,
    "tests/collectives/engines/test_sockets.py": 90,
    "tests/collectives/engines/test_spread.py": 60,
    "tests/collectives/schedule/test_defaults_model.py": 130,
    "tests/collectives/simulation/test_costs.py": 80,
    "tests/collectives/simulation/test_simulate.py": 110,
    "tests/namespaces/test_conformance.py": 80,
    "tests/namespaces/test_hierarchy.py": 110,
    "tests/namespaces/test_hosts.py": 50,
    "tests/rendezvous/test_garbage.py": 70,
    "tests/rendezvous/test_group_conflicts.py": 70,
    "tests/rendezvous/test_group_crashes.py": 40,
    "tests/rendezvous/test_stores.py": 60,
    "tests/test_launchers.py": 40,
    "tests/test_leftovers.py": 70,
}


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
    """Hands out the longest unit: a busy one where no other process has one, else one that is not."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _is_busy(self, node: WorkerController) -> bool:
        units = self.assigned_work[node]
        return any(name in BUSY and not all(tests.values()) for name, tests in units.items())

    def _assign_work_unit(self, node: WorkerController) -> None:
        wants_busy = not any(self._is_busy(other) for other in self.nodes if other is not node)
        fitting = [name for name in self.workqueue if (name in BUSY) == wants_busy]
        chosen = max(fitting or self.workqueue, key=lambda name: BUSY.get(name) or LONG.get(name, 0))  # first of equals
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
