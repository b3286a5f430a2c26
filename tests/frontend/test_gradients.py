"""The operators that gradients call, and whole graphs of training, against eager PyTorch at many sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export.experimental import _export_forward_backward
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

import dhlo
from dhlo.frontend.compat import VERSION
from tests.frontend.helpers import EXPORTED_FOR_ALL_SIZES, export

A: Any = torch.ops.aten
AUTO = torch.export.Dim.AUTO
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 5e-2}


def check(fn: Callable[..., Any], sets: Sequence[Sequence[torch.Tensor]], shapes: Any = None) -> None:
    """Compiles once with the first inputs; all sets give what eager gives."""
    model = dhlo.compile(export(fn, sets[0], shapes))
    for args in sets:
        got, want = tree_leaves(model(*args)), tree_leaves(fn(*args))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            if w is None:
                assert g is None
            else:
                tol = TOLERANCE[w.dtype]
                torch.testing.assert_close(g, w, rtol=tol, atol=tol)


def convolution_backward(*where: Any, mask: Sequence[bool] = (True, True, True)) -> Callable[..., Any]:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = A.convolution(x, w, None, *where)
        channels = w.shape[1] * where[-1] if where[3] else w.shape[0]
        return A.convolution_backward(y.cos(), x, w, [channels], *where, list(mask))

    return fn


# stride, padding, dilation, transposed, output padding, groups; weight; spatial sizes; dtype; which gradients
CONVOLUTIONS: dict[str, Any] = {
    "plain": (([1], [1], [1], False, [0], 1), (5, 4, 3, 3), [(8, 9), (15, 14), (1, 1), (5, 2)]),
    "strides": (([2, 3], [1, 0], [1, 2], False, [0, 0], 2), (6, 2, 3, 2), [(18, 13), (7, 8), (4, 6), (9, 31)]),
    "depthwise": (([2, 1], [1, 1], [1, 1], False, [0, 0], 4), (8, 1, 3, 3), [(18, 13), (7, 3), (4, 1), (9, 31)]),
    "large": (([1], [4], [1], False, [0], 4), (4, 1, 9, 9), [(8, 9), (5, 4), (1, 1)]),
    "transposed": (([2, 2], [1, 0], [1, 3], True, [1, 2], 2), (4, 3, 3, 2), [(8, 9), (15, 14), (1, 1), (5, 1)]),
    "1d": (([2], [3], [1], False, [0], 1), (5, 4, 7), [(18,), (6,), (9,), (31,)], torch.float64, (True, False, True)),
    "3d": (
        ([2] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1),
        (3, 4, 3, 3, 3),
        [(8, 7, 6), (6, 5, 5), (3, 4, 9)],
        torch.bfloat16,
        (False, True, True),
    ),
    "3d transposed": (
        ([1, 2, 2], [1] * 3, [1] * 3, True, [0, 1, 0], 1),
        (4, 3, 2, 3, 3),
        [(4, 5, 3), (3, 3, 5)],
        torch.float32,
        (True, True, False),
    ),
}


ALWAYS = ("strides", "depthwise", "transposed", "1d", "3d")


@pytest.mark.parametrize("name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in CONVOLUTIONS])
def test_convolution(name: str) -> None:
    where, weight, sizes, dtype, mask = (*CONVOLUTIONS[name], torch.float32, (True, True, True))[:5]
    n = len(weight) - 2
    spread = tuple(list(v) * (n // len(v)) if isinstance(v, list) else v for v in where)
    w, channels = torch.randn(weight, dtype=dtype), weight[0] if where[3] else weight[1] * where[-1]
    sets = [[torch.randn(batch, channels, *size, dtype=dtype), w] for batch, size in zip((2, 3, 0, 1), sizes, strict=False)]
    check(convolution_backward(*spread, mask=mask), sets, ({d: AUTO for d in range(n + 2) if d != 1}, None))


def test_convolution_of_sizes_that_vary() -> None:
    fn = convolution_backward([2, 1], [1, 0], [1, 2], False, [0, 0], 1)
    x, w = torch.randn, torch.randn
    check(fn, [[x(2, 3, 9, 8), w(4, 3, 3, 2)], [x(1, 5, 12, 20), w(2, 5, 5, 6)], [x(3, 2, 7, 9), w(3, 2, 4, 4)]])


SIZES = [(2, 3, 9, 8), (1, 4, 21, 6), (0, 2, 5, 5), (3, 1, 4, 33)]


AVERAGES: dict[str, Any] = {
    "whole": ([2, 2], [], [0, 0], False, True, None),
    "ceil": ([3, 2], [2, 1], [1, 1], True, True, None),
    "uncounted": ([3, 4], [2, 3], [1, 2], True, False, None),
    "divisor": ([3, 3], [2, 1], [1, 0], False, False, 5),
}


@EXPORTED_FOR_ALL_SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_average_pool(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> Any:
        return [A.avg_pool2d_backward(A.avg_pool2d(x, *where).cos(), x, *where) for where in AVERAGES.values()]

    check(fn, [[torch.randn(size, dtype=dtype)] for size in SIZES])


def test_average_pool_3d() -> None:
    where = [2, 3, 3], [2, 2, 1], [1, 1, 0], True, False, None

    def fn(x: torch.Tensor) -> torch.Tensor:
        return A.avg_pool3d_backward(A.avg_pool3d(x, *where).cos(), x, *where)

    check(fn, [[torch.randn(size, dtype=torch.float64)] for size in [(2, 3, 5, 6, 7), (1, 1, 3, 4, 9)]])


def test_adaptive_average_pool() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        pooled = [A._adaptive_avg_pool2d(x, size) for size in ([1, 1], [3, 5], [7, 12])]
        return [A._adaptive_avg_pool2d_backward(p.cos(), x) for p in pooled], A._adaptive_avg_pool3d_backward(y, x.unsqueeze(1))

    others = [(3, 2, 4), (7, 5, 9), (1, 2, 3), (1, 1, 2)]
    check(fn, [[torch.randn(s), torch.randn(s[0], 1, *other)] for s, other in zip(SIZES, others, strict=True)])


def test_attention() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        found = []
        for causal, more in ((True, {}), (False, {"attn_mask": mask, "scale": 0.3})):
            y, logs = A._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, **more)
            backward = A._scaled_dot_product_flash_attention_for_cpu_backward
            found.append(backward(y.cos(), q, k, v, y, logs, 0.0, causal, **more))
        return found

    sizes = [(2, 7, 9), (1, 1, 3), (3, 40, 33)]
    sets = [[torch.randn(b, 2, s, 8) for s in (m, n, n)] + [torch.randn(b, 2, m, n)] for b, m, n in sizes]
    check(fn, sets, (*[{0: AUTO, 2: AUTO}] * 3, {0: AUTO, 2: AUTO, 3: AUTO}))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str) -> None:
    kind = ["sum", "mean", "max"].index(mode)

    def fn(table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor) -> Any:
        found = []
        for given, padding in ((None, -1), (None, 3), (weights if kind == 0 else None, 2)):
            y, bag, size, best = A._embedding_bag(table, index, offsets, False, kind, False, given, False, padding)
            more = False, kind, False, given, padding
            found.append(A._embedding_bag_backward(y.cos(), index, offsets, bag, size, best, 10, *more))
            if given is not None:
                args = y.cos(), table, index, offsets, bag, kind, padding
                found.append(A._embedding_bag_per_sample_weights_backward(*args))
        return found

    table = torch.randn(10, 5)
    index = [torch.randint(0, 10, (n,)) for n in (6, 7, 1, 40)]
    offsets = [torch.tensor(starts) for starts in ([0, 2, 4], [0, 0, 2, 6], [0, 0], [0, 5, 9, 9, 30, 40])]
    sets = [(table, i, o, torch.randn(len(i))) for i, o in zip(index, offsets, strict=True)]
    check(fn, sets, (None, {0: AUTO}, {0: AUTO}, {0: AUTO}))


def test_embedding_bag_by_frequency() -> None:
    """PyTorch's own result divides by other indices' counts."""

    def fn(grad: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        none = torch.zeros(0, dtype=torch.int64)
        return A._embedding_bag_backward(grad, index, offsets, none, none, none, 10, True, 0, False, None)

    args = torch.randn(3, 5), torch.tensor([8, 3, 3, 1, 5, 5, 3]), torch.tensor([0, 2, 4])
    model = dhlo.compile(export(fn, args, (None, {0: AUTO}, None)))
    want = torch.zeros(10, 5).index_add_(0, args[1], args[0][[0, 0, 1, 1, 2, 2, 2]])
    torch.testing.assert_close(model(*args), want / args[1].bincount(minlength=10).clamp(min=1)[:, None])


def test_distances() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        found = []
        for p in (0.0, 1.0, 1.5, 2.0, 3.0, float("inf")):
            distance = A._cdist_forward(x, y, p, None)
            found.append(A._cdist_backward(distance.cos(), x, y, p, distance))
        return found

    sets = [[torch.randn(b, n, 3), torch.randn(b, m, 3)] for b, n, m in [(2, 5, 4), (1, 1, 7), (3, 8, 2)]]
    sets[1][1][0, 0] = sets[1][0][0, 0]
    check(fn, sets, ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}))


def test_masked_scatter() -> None:
    def fn(grad: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return A.masked_scatter_backward(grad, grad[:, :1] > 0, source.shape)

    check(fn, [[torch.randn(n, 3), torch.randn(m, 5)] for n, m in [(6, 7), (1, 2), (9, 6), (4, 30)]], ({0: AUTO}, {0: AUTO}))


class Convolutional(torch.nn.Module):
    """The loss of a classifier of images, whose batch norm updates its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 5)
        self.second = torch.nn.Conv2d(8, 8, 3, stride=2, groups=2)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2) + F.avg_pool2d(self.first(x)[:, :8], 2)
        return F.cross_entropy(self.last(F.adaptive_avg_pool2d(self.second(x), (1, 1)).flatten(1)), label)


class Transformer(torch.nn.Module):
    """The loss of a transformer block that predicts tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner, self.last = torch.nn.Embedding(11, 16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 11)
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        q, k, v = self.inner(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + F.gelu(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return F.cross_entropy(self.last(x).flatten(0, 1), label)


@pytest.mark.parametrize(
    "kind", [pytest.param("convolutional", marks=EXPORTED_FOR_ALL_SIZES), pytest.param("transformer", marks=pytest.mark.slow)]
)
def test_joint_graph(kind: str) -> None:
    if kind == "convolutional":
        model: torch.nn.Module = Convolutional()
        sets = [(torch.randn(b, 3, h, w), torch.randint(5, (b,))) for b, h, w in [(4, 16, 20), (1, 13, 11), (3, 30, 19)]]
    else:
        model, sizes = Transformer(), [(2, 7), (1, 3), (3, 40)]
        sets = [(torch.randint(11, (b, s)), torch.randint(11, (b * s,))) for b, s in sizes]
    spec = tuple(dict.fromkeys([d for d in range(x.dim()) if x.shape[d] != 3 or kind != "convolutional"], AUTO) for x in sets[0])
    with sdpa_kernel(SDPBackend.MATH):  # torch.export mixes up the results of attention's other forms
        exported = torch.export.export(model, sets[0], dynamic_shapes=spec)
        compiled = dhlo.compile(_export_forward_backward(exported))
    for args in sets:
        loss, gradients = compiled(*args)
        model.zero_grad()
        want = model(*args)
        want.backward()
        torch.testing.assert_close(loss, want.detach(), rtol=1e-4, atol=1e-5)
        assert list(gradients) == [name for name, _ in model.named_parameters()]
        for name, p in model.named_parameters():
            torch.testing.assert_close(gradients[name], p.grad, rtol=1e-3, atol=1e-5)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(compiled.read_state(name), buffer)


def test_gradients_inside_a_program() -> None:
    class Step(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.autograd.grad((x.sin() * x).sum(), x)

    x = torch.randn(3, 4, requires_grad=True)
    compiled = dhlo.compile(torch.export.export(Step(), (x,), dynamic_shapes=({0: AUTO, 1: AUTO},)))
    for y in (x, torch.randn(1, 9, requires_grad=True)):
        torch.testing.assert_close(compiled(y)[0], Step()(y)[0])


@pytest.mark.skipif(VERSION < (2, 13), reason="torch 2.12 can't export it")
def test_gradients_that_torch_export_loses() -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.func.grad(lambda v: (v.sin() * v).sum())(x)

    exported = torch.export.export(Inner(), (torch.randn(3, 4),), dynamic_shapes=({0: AUTO},))
    with pytest.raises(dhlo.CompileError, match="has no data"):
        dhlo.compile(exported)
