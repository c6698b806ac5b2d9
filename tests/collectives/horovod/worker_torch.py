"""Run by test_torch.py with two processes."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

import collectives.horovod.torch as hvd
from collectives.horovod.compression import NoneCompressor
from tests.collectives.horovod import signatures
from tests.collectives.horovod.worker import differences, digest, example, raised, run

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
torch.set_num_threads(1)


def names() -> Any:
    return differences(hvd, signatures.TORCH, signatures.VALUES["TORCH"])


def _row(*values: float) -> Any:
    return torch.tensor(values, dtype=torch.float32) * (RANK + 1)


def allreduce() -> Any:
    x = _row(1, -4, 6)
    integers = torch.tensor([3, -8]) + RANK  # sums 7 and -15
    in_place = [x.clone(), integers.clone()]
    found = {
        "average": hvd.allreduce(x),
        "sum": hvd.allreduce(x, op=hvd.Sum),
        "min": hvd.allreduce(x, op=hvd.Min),
        "max": hvd.allreduce(x, op=hvd.Max, name="largest"),
        "product": hvd.allreduce(x, op=hvd.Product),
        "scaled": hvd.allreduce(x, prescale_factor=0.5, postscale_factor=8.0),
        "integers": hvd.allreduce(integers),
        "fp16": hvd.allreduce(x, compression=hvd.Compression.fp16),
        "bf16": hvd.allreduce(x, compression=hvd.Compression.bf16),
        "async": hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum)),
        "grouped": hvd.grouped_allreduce([x, integers])[1],
        "untouched": x,
        "returned": hvd.allreduce_(in_place[0], op=hvd.Sum, prescale_factor=2.0),
        "in place": in_place[0],
        "grouped in place": hvd.synchronize(hvd.grouped_allreduce_async_(in_place, postscale_factor=1.0))[0],
        "integers in place": in_place[1],
        "scaled integers": hvd.allreduce(integers, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        "scaled average": hvd.allreduce(integers, postscale_factor=1.5),
        "scaled in place": hvd.allreduce_(integers.clone(), op=hvd.Sum, prescale_factor=0.5),
        "scaled rows": hvd.allgather(hvd.reducescatter(integers, op=hvd.Sum, postscale_factor=0.5)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found["old sum"] = hvd.allreduce(x, average=False)
    handle = hvd.grouped_allreduce_async([x, x], op=hvd.Sum)
    found["handle"] = torch.stack(hvd.synchronize(handle))
    assert hvd.poll(handle) and in_place[0].data_ptr() == found["returned"].data_ptr()
    assert found["fp16"].dtype == torch.float32
    return {name: value.tolist() for name, value in found.items()}


def refused() -> Any:
    x = _row(1.0)
    wrongs = [None, [1.0], np.ones(2), "x"]
    root = (hvd.broadcast, hvd.broadcast_, hvd.broadcast_async, hvd.broadcast_async_)
    others = (hvd.allgather, hvd.allgather_async, hvd.alltoall, hvd.alltoall_async, hvd.reducescatter)
    sums = (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_, hvd.reducescatter_async)
    every = [*((f, (0,)) for f in root), *((f, ()) for f in (*others, *sums))]
    return {
        "adasum": raised(hvd.allreduce, x, op=hvd.Adasum),
        "both": raised(hvd.allreduce, x, average=True, op=hvd.Sum),
        "factor": raised(hvd.allreduce, torch.tensor(True), prescale_factor=0.5),
        "sparse": raised(hvd.sparse_allreduce_async, x, "name", hvd.Average),
        **{f"{f.__name__} of {type(wrong).__name__}": raised(f, wrong, *rest) for f, rest in every for wrong in wrongs},
        "compression": raised(hvd.allreduce, x, compression="fp16"),
        "elastic": raised(lambda: hvd.elastic.TorchState),
        "timeline": raised(hvd.start_timeline, "timeline.json"),
        "splits": raised(hvd.alltoall_async, torch.zeros(3), [1, 1]),
        "optimizer op": raised(hvd.DistributedOptimizer, _sgd()[1], op=hvd.Max),
        "optimizer adasum": raised(hvd.DistributedOptimizer, _sgd()[1], op=hvd.Adasum),
        "predivide": raised(hvd.DistributedOptimizer, _sgd()[1], op=hvd.Sum, gradient_predivide_factor=2.0),
        "names": raised(hvd.DistributedOptimizer, _sgd()[1], named_parameters=[torch.zeros(1)]),
        "params": raised(hvd.broadcast_parameters, 3, 0),
    }


def others() -> Any:
    rows = torch.arange(2.0 + RANK) + 10 * RANK  # 0 1; 10 11 12
    x = _row(1, 2, 3)
    sparse = torch.sparse_coo_tensor([[RANK, 2]], [1.0, 2.0], (4,), check_invariants=True)
    in_place = torch.full((2,), float(RANK))
    hvd.barrier()
    found = {
        "allgather": hvd.allgather(rows),
        "allgather async": hvd.synchronize(hvd.allgather_async(rows, name="rows")),
        "grouped allgather": hvd.grouped_allgather([rows, rows + 1])[1],
        "grouped allgather async": hvd.synchronize(hvd.grouped_allgather_async([rows, rows + 1]))[1],
        "broadcast": hvd.broadcast(x, 1),
        "broadcast async": hvd.synchronize(hvd.broadcast_async(x, root_rank=1)),
        "broadcast in place": hvd.broadcast_(in_place, 1),
        "in place": in_place,
        "broadcast async in place": hvd.synchronize(hvd.broadcast_async_(in_place.clone(), 0)),
        "bool": hvd.broadcast(torch.tensor([RANK == 1]), 1),
        "sparse": hvd.sparse_allreduce_async(sparse, "sparse", hvd.Average)().to_dense(),
        "sparse sum": hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense(),
    }
    return {name: value.tolist() for name, value in found.items()}


def by_rank() -> Any:
    """What each rank has of its own."""
    x = _row(1, 2, 3)  # sums 3, 6, 9
    even = _row(1, 2, 3, 4)
    rows = torch.arange(3) + 10 * RANK
    received, counts = hvd.alltoall(rows, [1, 2])
    later, theirs = hvd.synchronize(hvd.alltoall_async(rows, torch.tensor([1, 2])))
    assert counts.dtype == torch.int32 and theirs.dtype == torch.int64
    found = {
        "reducescatter": hvd.reducescatter(x, op=hvd.Sum),
        "average": hvd.reducescatter(even, postscale_factor=2.0, compression=hvd.Compression.fp16),
        "integers": hvd.reducescatter(torch.tensor([7, -7])),
        "reducescatter async": hvd.synchronize(hvd.reducescatter_async(x, op=hvd.Sum, prescale_factor=2.0)),
        "even async": hvd.synchronize(hvd.reducescatter_async(even)),
        "grouped": hvd.grouped_reducescatter([x, even])[1],
        "grouped async": hvd.synchronize(hvd.grouped_reducescatter_async([x, even], op=hvd.Sum))[0],
        "alltoall": hvd.alltoall(torch.arange(4) + 10 * RANK),
        "split": received,
        "counts": counts,
        "split async": later,
        "counts async": theirs,
    }
    return {name: value.tolist() for name, value in found.items()}


def _gradient(function: Any) -> Any:
    """Of this rank's loss: the sum of what comes, times rank + 1."""
    x = torch.ones(2, requires_grad=True)
    ((RANK + 1) * function(x).sum()).backward()
    assert x.grad is not None
    return x.grad.tolist()


def gradients() -> Any:
    return {
        "average": _gradient(hvd.allreduce),
        "sum": _gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5)),
        "grouped": _gradient(lambda x: sum(hvd.grouped_allreduce([x, 2 * x]))),
        "fp16": _gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16)),
        "allgather": _gradient(hvd.allgather),
        "broadcast": _gradient(lambda x: hvd.broadcast(x, 1)),
        "reducescatter": _gradient(hvd.reducescatter),
        "reducescatter sum": _gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)),
        "alltoall": _gradient(hvd.alltoall),
        "max": raised(_gradient, lambda x: hvd.allreduce(x, op=hvd.Max)),
    }


_IN_PLACE = {
    "allreduce_": lambda x: hvd.allreduce_(x, op=hvd.Sum, prescale_factor=0.5),
    "allreduce_async_": lambda x: hvd.synchronize(hvd.allreduce_async_(x)),
    "grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x], op=hvd.Sum)[0],
    "broadcast_": lambda x: hvd.broadcast_(x, 1),
    "broadcast_async_": lambda x: hvd.synchronize(hvd.broadcast_async_(x, 1)),
}


def _changed(function: Any) -> Any:
    """What autograd makes of it: the error of a tensor that was saved, a leaf's history, a gradient that passes."""
    saved = torch.ones(2)
    loss = (saved * torch.ones(2, requires_grad=True)).sum()
    function(saved)
    leaf = torch.ones(2, requires_grad=True)
    assert function(leaf) is leaf and leaf.is_leaf and leaf._version
    weight = torch.ones(2, requires_grad=True)
    ((RANK + 1) * function(3 * weight).sum()).backward()
    assert weight.grad is not None
    return raised(loss.backward), weight.grad.tolist()


def in_place() -> Any:
    return {name: _changed(function) for name, function in _IN_PLACE.items()}


def process_sets() -> Any:
    only = hvd.add_process_set([1])
    model, optimizer = _sgd()
    optimizer = hvd.DistributedOptimizer(optimizer, process_set=only)
    _step(model, optimizer)
    found = raised(hvd.allreduce, torch.ones(1), process_set=only)
    root = hvd.broadcast(torch.tensor([5.0]), 1, process_set=only).tolist() if RANK == 1 else None
    assert hvd.remove_process_set(only)
    return found, root, model.weight.tolist()


# --- training


def _sgd() -> tuple[Any, Any]:
    """A model of two weights, 0, and an optimizer that takes the gradient off them."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def _step(model: Any, optimizer: Any, passes: int = 1) -> Any:
    """Gradients are 1, -4 times rank + 1, and times 1, 2, ... in each pass."""
    optimizer.zero_grad()
    for i in range(passes):
        (model(_row(1, -4)[None]).sum() * (i + 1)).backward()
    optimizer.step()
    return model.weight.tolist()[0]


def _trained(passes: int = 1, **options: Any) -> Any:
    model, optimizer = _sgd()
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes, **options)
    assert isinstance(optimizer, torch.optim.SGD)
    _step(model, optimizer, passes)
    return _step(model, optimizer, passes)  # buckets are only known from the second step on


class Halved(NoneCompressor):
    """A compressor of a user's, made of Horovod's."""

    calls: ClassVar[list[str]] = []

    @staticmethod
    def compress(tensor: Any) -> Any:
        Halved.calls.append("compress")
        return tensor / 2, "half"

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        Halved.calls.append(ctx)
        return tensor * 2


def optimizers() -> Any:
    with warnings.catch_warnings(record=True) as results:
        warnings.simplefilter("always")
        grouped = _trained(groups=2)
    return {
        "average": _trained(),
        "sum": _trained(op=hvd.Sum),
        "predivided": _trained(gradient_predivide_factor=4.0),
        "passes": _trained(2),
        "fp16": _trained(compression=hvd.Compression.fp16),
        "fp16 predivided": _trained(compression=hvd.Compression.fp16, gradient_predivide_factor=4.0),
        "own": [_trained(compression=Halved), Halved.calls],
        "groups": [grouped, [str(w.message) for w in results]],
    }


def sparse_as_dense() -> Any:
    """SparseAdam takes sparse gradients only; rank 1 has none in the second step."""
    table, alone = nn.Embedding(4, 1, sparse=True), nn.Embedding(4, 1, sparse=True)
    optimizers = []
    for layer in (table, alone):
        nn.init.zeros_(layer.weight)
        optimizers.append(torch.optim.SparseAdam(layer.parameters(), lr=0.5))
    optimizer = hvd.DistributedOptimizer(optimizers[0], sparse_as_dense=True)
    found = []
    for step, mean in enumerate(([0.5, 0.5, 1.0, 0.0], [0.5, 0.0, 0.5, 0.0])):
        optimizer.zero_grad()
        if step == 0 or RANK == 0:
            table(torch.tensor([RANK, 2])).sum().backward()
        optimizer.step()
        grad = table.weight.grad
        assert grad is not None and grad.is_sparse and grad.sparse_dim() == 1
        found.append(grad.to_dense().ravel().tolist() == mean)
        alone.weight.grad = torch.tensor(mean)[:, None].to_sparse(1)
        optimizers[1].step()
    return found, torch.equal(table.weight, alone.weight)


def joined() -> Any:
    """Rank 0 has 2 batches, rank 1 has 4, each with a metric between backward() and step()."""
    found = []
    for optimizers in ("at once", "later"):
        (model, made), (table, rows) = _sgd(), _embedding()
        made, rows = hvd.DistributedOptimizer(made), hvd.DistributedOptimizer(rows)
        metrics: list[Any] = []
        if optimizers == "at once":
            for _ in range(2 + 2 * RANK):
                made.zero_grad()
                rows.zero_grad()
                (model(_row(1, -4)[None]).sum() + table(torch.tensor([RANK])).sum()).backward()
                metrics.append(float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)))
                made.step()
                rows.step()
        elif RANK == 1:  # rank 0 has nothing at all
            for _ in range(2):
                _step(model, made)
            handles = [hvd.allreduce_async(torch.tensor([n]), op=hvd.Sum) for n in range(3)]
            metrics += [float(hvd.synchronize(handle)) for handle in handles]
            many = hvd.grouped_allreduce([torch.full((n + 1,), float(n)) for n in range(70)], op=hvd.Sum)
            metrics.append(float(sum(x.sum() for x in many)))
            mixed = hvd.grouped_allreduce_([torch.tensor([8.0]), torch.tensor([9])])
            metrics += [float(x) for x in mixed]
            metrics.append(raised(hvd.allreduce, torch.ones(1), op=hvd.Max))
        if optimizers == "later" and RANK == 0:
            metrics.append(raised(hvd.join))  # of rank 1's Max
        last = hvd.join()
        found.append([last, model.weight.tolist()[0], table.weight.ravel().tolist(), metrics])
    return found, float(hvd.allreduce(torch.tensor(float(RANK))))


def others_while_a_rank_has_joined() -> Any:
    found = raised(hvd.broadcast, torch.ones(3), 0) if RANK else raised(hvd.join)
    hvd.shutdown()
    hvd.init()
    return found, hvd.join() in (0, 1)


def _embedding() -> tuple[Any, Any]:
    table = nn.Embedding(3, 1, sparse=True)
    nn.init.zeros_(table.weight)
    return table, torch.optim.SGD(table.parameters(), lr=1.0)


def clipping() -> Any:
    model, optimizer = _sgd()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    model(_row(1, -4)[None]).sum().backward()
    optimizer.synchronize()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    with optimizer.skip_synchronize():
        optimizer.step()
    return norm, float(model.weight.detach().norm())


def start() -> Any:
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (RANK + 1))
    if RANK == 0:  # the others have made no step yet
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
    hvd.broadcast_parameters(model.named_buffers(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state_dict()
    moments = [entry[key].numpy() for entry in state["state"].values() for key in sorted(entry)]
    weights = [value.numpy() for value in model.state_dict().values()]
    return digest(weights), digest(moments), len(moments), state["param_groups"][0]["lr"]


def normalization() -> Any:
    """Against PyTorch's layer and the batches of all ranks together; rank 1's is larger."""
    found = []
    for momentum, affine in ((0.1, True), (None, False)):
        torch.manual_seed(7)
        batches = [torch.randn(3 + rank, 4, 5) * 0.01 + 100 for rank in range(SIZE)]  # far from 0
        whole = torch.cat(batches).requires_grad_()
        mine = batches[RANK].clone().requires_grad_()
        one, synced = nn.BatchNorm1d(4, momentum=momentum, affine=affine), None
        synced = hvd.SyncBatchNorm(4, momentum=momentum, affine=affine)
        if affine:
            for layer in (one, synced):
                nn.init.constant_(layer.weight, 1.5)
        rows = slice(3 * RANK, 3 + 4 * RANK)
        upstream = torch.randn(7, 4, 5)
        for _ in range(2):
            expected, got = one(whole), synced(mine)
        (expected * upstream).sum().backward()
        (got * upstream[rows]).sum().backward()
        assert whole.grad is not None and mine.grad is not None
        expected, got = expected.detach(), got.detach()
        away = [
            float((got - expected[rows]).abs().max()),
            float((mine.grad - whole.grad[rows]).abs().max() / whole.grad.abs().max()),
            float((synced.running_mean - one.running_mean).abs().max()),
            float((synced.running_var / one.running_var - 1).abs().max()),
            float((synced.eval()(mine) - one.eval()(whole)[rows]).detach().abs().max()),
        ]
        state = digest(value.numpy() for value in synced.state_dict().values())
        found.append([away, int(synced.num_batches_tracked), state])
    return found, raised(hvd.SyncBatchNorm(4), torch.zeros(3))


# --- a script


def script() -> Any:
    found = []
    for options in ((), ("--fp16-allreduce",)):
        left = example("horovod_torch_digits.py", arguments=("--epochs=5", *options))
        found.append(
            [left.get("exit"), left["accuracy"], digest(p.detach().numpy() for p in left["model"].parameters())]
        )
    return found


def script_that_is_not_distributed() -> Any:
    left = example(
        "horovod_torch_digits.py",
        ("hvd.DistributedOptimizer(", "(lambda optimizer, **options: optimizer)("),
        arguments=("--epochs=1",),
    )
    return left.get("exit")


run([
    names, allreduce, refused, others, by_rank, gradients, in_place, process_sets, optimizers, sparse_as_dense, joined,
    clipping, start, normalization, script, script_that_is_not_distributed, others_while_a_rank_has_joined,
])  # fmt: skip
