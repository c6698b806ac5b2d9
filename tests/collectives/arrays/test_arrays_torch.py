"""PyTorch's tensors given to a communicator: what they stand for, whose memory they are, and what autograd is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives.arrays import array as arrays
from collectives.core.communicator import Communicator
from tests.collectives.groups import ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def negated() -> Any:
    """Its sign is only noted: [-2, -4]."""
    return torch.tensor([1 + 2j, 3 + 4j]).conj().imag


LAZY = {
    "negative": (negated, [-2, -4]),
    "conjugate": (lambda: torch.tensor([1 + 2j, 3 + 4j]).conj(), [1 - 2j, 3 - 4j]),
    "both": (torch.tensor([[1 + 2j], [3 + 4j]]).conj().imag.t, [[-2, -4]]),
    "zeros": (lambda: torch._efficientzerotensor((2,)), [0, 0]),
    "expanded": (lambda: torch.tensor([3.0]).expand(2), [3, 3]),
    "transposed": (lambda: torch.tensor([[1, 2], [3, 4]]).t(), [[1, 3], [2, 4]]),
}


@pytest.mark.parametrize("name", list(LAZY))
def test_elements_are_those_that_torch_shows(name: str) -> None:
    make, expected = LAZY[name]
    assert make().clone().tolist() == expected
    assert arrays.reading(make()).tolist() == expected


def test_no_collective_loses_a_sign() -> None:
    def body(comm: Communicator) -> None:
        x = negated()
        out = torch.zeros(2)
        assert comm.allreduce(x).tolist() == [-4, -8]
        assert comm.allreduce(x, out=out) is out and out.tolist() == [-4, -8]
        assert comm.allreduce_many([x, x])[1].tolist() == [-4, -8]
        assert comm.allgather(x).tolist() == [[-2, -4]] * 2
        assert comm.allgatherv(x).tolist() == [-2, -4] * 2
        assert comm.alltoall(x).tolist() == [x[comm.rank]] * 2
        with pytest.raises(ValueError, match="not contiguous"):
            comm.broadcast(x)
        with pytest.raises(ValueError, match="not contiguous"):
            comm.allreduce(x, out=x)
        comm.barrier()

    ranks(2, body)


@pytest.mark.parametrize("bit", ["conj", "_neg_view"])
def test_a_bit_that_is_only_noted_is_not_written_past(bit: str) -> None:
    x = getattr(torch.zeros(2, dtype=torch.complex64), bit)()
    assert x.is_contiguous()
    with pytest.raises(ValueError, match=r"only when it is read.*resolve_conj\(\).resolve_neg\(\)"):
        arrays.writing(x)


# --- memory that is nobody's


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(2))


def _masked() -> Any:
    from torch.masked import masked_tensor

    return masked_tensor(torch.tensor([5.0, 6.0]), torch.tensor([True, False]))


def _wrapping() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.ones(2), torch.ones(2))


def _freed() -> Any:
    x = torch.ones(2)
    x.untyped_storage().resize_(0)
    return x


NOBODYS: dict[str, tuple[Callable[[], Any], str]] = {
    "fake": (_fake, "FakeTensor.*no values"),
    "masked": (_masked, r"MaskedTensor.*x.to_tensor\(value\)"),
    "wrapping": (_wrapping, "TwoTensor without memory of its own"),
    "freed": (_freed, "storage was freed"),
    "meta": (lambda: torch.ones(2, device="meta"), "meta device"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), r"sparse_csr: give x.to_dense\(\)"),
    "coo": (lambda: torch.eye(2).to_sparse(), r"sparse_coo: give x.to_dense\(\)"),
    "mkldnn": (lambda: torch.ones(2, 2).to_mkldnn(), r"x.to_dense\(\)"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), r"nested.*x.values\(\)"),
    "lazy": (torch.nn.parameter.UninitializedParameter, "forward pass"),
}


@pytest.mark.filterwarnings("ignore")  # torch's prototypes warn that they are
@pytest.mark.parametrize("name", list(NOBODYS))
@pytest.mark.parametrize("use", [arrays.reading, arrays.writing])
def test_what_has_no_memory_of_its_own_is_refused(name: str, use: Callable[[Any, str], Any]) -> None:
    make, words = NOBODYS[name]
    with pytest.raises(TypeError, match=words):
        use(make(), "x")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", [arrays.reading, arrays.writing])
@pytest.mark.parametrize("transformation", ["functionalize", "vmap", "jvp"])
def test_tensors_inside_a_transformation_are_refused(use: Callable[[Any], Any], transformation: str) -> None:
    def function(x: Any) -> Any:
        y = x + 1
        with pytest.raises(TypeError, match="without memory of its own"):
            use(y)
        return y

    x = torch.ones(2, 2)
    if transformation == "jvp":
        torch.func.jvp(function, (x,), (x,))
    else:
        getattr(torch.func, transformation)(function)(x)


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match=r"quantized.*x.int_repr\(\)"):
        arrays.reading(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))


def test_subclasses_that_are_tensors_are_taken() -> None:
    class Named(torch.Tensor):  # type: ignore[name-defined]
        """A tensor with a type of its own."""

    x = torch.ones(2).as_subclass(Named)
    target = arrays.writing(x)
    target.host[...] = 3
    assert x.tolist() == [3, 3]


# --- autograd


def test_what_requires_a_gradient_is_refused_unless_gradients_are_off() -> None:
    x = torch.ones(2, requires_grad=True)
    for use in (arrays.reading, arrays.writing):
        for tensor in (x, x * 2, torch.nn.Parameter(torch.ones(2))):
            with pytest.raises(TypeError, match=r"requires a gradient.*detach\(\).*collectives.torch.allreduce"):
                use(tensor)
    with torch.no_grad():
        assert arrays.reading(x).tolist() == [1, 1]
        arrays.writing(x).host[...] = 2
    assert x.tolist() == [2, 2]


def _to_both(comm: Communicator, x: Any) -> None:
    for receiver in (0, 1):
        if comm.rank == receiver:
            comm.recv(x, 1 - receiver)
        else:
            comm.send(np.ones(2, np.float32), receiver)


DOORS: dict[str, Callable[[Communicator, Any], Any]] = {
    "allreduce": lambda comm, x: comm.allreduce(x, out=x),
    "allreduce of another": lambda comm, x: comm.allreduce(np.ones(2, np.float32), out=x),
    "allreduce_async": lambda comm, x: comm.allreduce_async(x, out=x).result(),
    "allreduce_many": lambda comm, x: comm.allreduce_many([x], out=[x]),
    "allreduce_many_async": lambda comm, x: comm.allreduce_many_async([x], out=[x]).result(),
    "broadcast": lambda comm, x: comm.broadcast(x, 1),
    "broadcast_async": lambda comm, x: comm.broadcast_async(x, 1).result(),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter(np.ones(4, np.float32), out=x),
    "allgather": lambda comm, x: comm.allgather(np.float32(comm.rank), out=x),
    "alltoall": lambda comm, x: comm.alltoall(np.ones(2, np.float32), out=x),
    "recv": _to_both,
    "sendrecv": lambda comm, x: comm.sendrecv(np.ones(2, np.float32), 1 - comm.rank, x, 1 - comm.rank),
    "scan": lambda comm, x: comm.scan(x, out=x),
    "a function": lambda comm, x: comm.allreduce(x, np.add, out=x),
}


@pytest.mark.parametrize("name", list(DOORS))
def test_a_result_in_a_tensor_counts_as_an_in_place_operation(name: str) -> None:
    def body(comm: Communicator) -> None:
        x = torch.tensor([1.0, 2.0])
        weight = torch.ones(2, requires_grad=True)
        loss = (x * weight).sum()  # keeps x for the backward pass
        before = x._version
        DOORS[name](comm, x)
        assert x._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    ranks(2, body)


def test_what_is_refused_or_only_read_is_not_counted() -> None:
    def body(comm: Communicator) -> None:
        x = torch.ones(2)
        comm.allreduce(x)
        comm.allgather(x)
        comm.reduce(x, root=0, out=x if comm.rank else None)  # the root alone is written
        with pytest.raises(TypeError, match="no meaning"):
            comm.allreduce(x, "land", out=x)
        with pytest.raises(ValueError, match="shape"):
            comm.allreduce(np.ones(3), out=x)
        assert x._version == 0

    ranks(2, body)


def test_inference_tensors_have_no_version() -> None:
    def body(comm: Communicator) -> None:
        with torch.inference_mode():
            x = torch.ones(2)
            assert comm.allreduce(x, out=x) is x
        assert comm.allreduce(x, out=x) is x and x.tolist() == [4, 4]

    ranks(2, body)


# --- dtypes


def test_bfloat16_is_reduced_and_written() -> None:
    def body(comm: Communicator) -> None:
        x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
        total = comm.allreduce(x)
        assert total.dtype == ml_dtypes.bfloat16 and total.tolist() == [3, -4]
        assert comm.allreduce(x, out=x) is x and x.tolist() == [3, -4]
        assert comm.allreduce_many([x])[0].tolist() == [6, -8]
        assert comm.allgather(x[:1]).shape == (2, 1)
        y = torch.full((2,), float(comm.rank), dtype=torch.bfloat16)
        assert comm.broadcast(y, 1).tolist() == [1, 1]

    ranks(2, body)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_float8_is_moved_and_not_reduced(name: str) -> None:
    def body(comm: Communicator) -> None:
        x = torch.tensor([1.0, -2.0]).to(getattr(torch, name)) if comm.rank else torch.zeros(2).to(getattr(torch, name))
        gathered = comm.allgather(x)
        assert gathered.dtype.name == name and gathered.astype("float32").tolist() == [[0, 0], [1, -2]]
        assert comm.broadcast(x, 1) is x and x.float().tolist() == [1, -2]
        with pytest.raises(TypeError, match=f"{name}, which can be moved .* but not reduced: convert it to float32"):
            comm.allreduce(x)
        comm.barrier()

    ranks(2, body)


def test_torchs_integers_below_a_byte_are_moved_as_bytes_and_not_reduced() -> None:
    if not hasattr(torch, "uint4"):
        pytest.skip(f"torch {torch.__version__} has no uint4")

    def body(comm: Communicator) -> None:
        x = torch.tensor([0x12, 0x34 + comm.rank], dtype=torch.uint8).view(torch.uint4)
        assert comm.broadcast(x, 1) is x and x.view(torch.uint8).tolist() == [0x12, 0x35]
        assert comm.allgather(x).tolist() == [[0x12, 0x35]] * 2
        with pytest.raises(TypeError, match=r"torch.uint4, which cannot be reduced.*view\(torch.uint8\)"):
            comm.allreduce(x)

    ranks(2, body)
