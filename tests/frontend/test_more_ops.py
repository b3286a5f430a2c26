"""Order statistics, reinterpreted memory, sampling, losses, complex numbers, decomposed operators; compiled at several sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import dhlo
from tests.frontend.helpers import EXPORTED_FOR_ALL_SIZES, check, export, import_fn, run

rn = torch.randn


def ri(*shape: int, hi: int = 5) -> torch.Tensor:
    return torch.randint(0, hi, shape)


def cn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def some_nan(*shape: int) -> torch.Tensor:
    """NaN from the third row on: which of several NaN an operator picks is its own affair."""
    late = (torch.arange(shape[0]) >= 2).reshape(-1, *[1] * (len(shape) - 1))
    return torch.where((torch.rand(shape) < 0.2) & late, torch.nan, torch.randn(shape))


def compiled(fn: Any, *sets: Any) -> None:
    """Compiles once with the first inputs; all sets give what eager gives."""
    model = dhlo.compile(export(fn, sets[0]))
    for args in sets:
        for got, want in zip(tree_leaves(model(*args)), tree_leaves(fn(*[a.clone() for a in args])), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


A: Any = torch.ops.aten
CASES: dict[str, Any] = {
    "trilinear": (
        lambda x, y, z: (A._trilinear(x, y, z, [1], [0], [1, 2], [1, 2]), A._trilinear(x, y, z, [1], [0], [1, 2], [])),
        [[rn(2, 5, 6), rn(3, 5, 6), rn(2, 6)]],
    ),
    "flash attention": (
        lambda q, k, m: (
            *A._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, True),
            *A._scaled_dot_product_flash_attention_for_cpu(q, k, k, attn_mask=m, scale=0.3),
        ),
        [[rn(2, 4, 8, 16), rn(2, 4, 8, 16), rn(2, 4, 8, 8)], [rn(1, 3, 17, 16), rn(1, 3, 17, 16), rn(1, 3, 17, 17)]],
    ),
    "average of integers": (
        lambda x: F.avg_pool2d(x, (3, 2), 2, 1),
        [[ri(2, 3, 8, 9, hi=99) - 50], [ri(1, 3, 18, 7, hi=99) - 50]],
    ),
    "rounded size": (lambda x: x[: round(x.shape[0] / 2)], [[rn(6, 3)], [rn(5, 4)], [rn(7, 4)]]),
    "linspace to a size": (lambda x: torch.linspace(0, x.size(0) - 1, 5), [[rn(6, 3)], [rn(3, 4)], [rn(1, 1)]]),
    "rrelu": (lambda x: A.rrelu_with_noise(x, x), [[rn(6, 3)], [rn(1, 4)]]),
    "median": (
        lambda x: (x.median(), x.median(1), x.nanmedian(), x.nanmedian(0), x.kthvalue(2, 0)),
        [[some_nan(3, 5)], [rn(4, 6)], [some_nan(7, 40)]],
    ),
    "mode": (lambda x: (x.mode(), x.mode(0)), [[ri(3, 5)], [ri(4, 6)]]),
    "running": (
        lambda x: (x.cummax(1), x.cummin(0), torch.logcumsumexp(x * 30, 0)),
        [[some_nan(3, 5)], [rn(40, 60)], [rn(1, 1)]],
    ),
    "bits": (
        lambda x: (x.view(torch.int32), x.view(torch.int16), x.view(torch.uint8), x.view(torch.bfloat16), torch.frexp(x)),
        [[rn(3, 5)], [rn(40, 6)]],
    ),
    "wider bits": (lambda x: (x.view(torch.float32), x.view(torch.int64)), [[rn(3, 8).half()], [rn(5, 16).half()]]),
    "strided": (
        lambda x: (
            x.as_strided((2, 2), (1, 2)),
            x.t().as_strided((3,), (2,), 1),
            (x + 1).t().contiguous().as_strided((2, 3), (1, 1), 1),
        ),
        [[rn(3, 5)], [rn(4, 6)]],
    ),
    "signs": (
        lambda x, y: (torch.copysign(x, y), torch.nextafter(x, y), torch.signbit(x)),
        [[rn(3, 5), rn(3, 5)], [torch.zeros(4, 6), -torch.zeros(4, 6)]],
    ),
    "integer product": (torch.matmul, [[ri(3, 5), ri(5, 2)], [ri(4, 0), ri(0, 7)]]),
    "half product": (torch.matmul, [[rn(3, 5).half(), rn(5, 2).half()], [rn(1, 6).half(), rn(6, 7).half()]]),
    "varying channels": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=2),
        [[rn(2, 4, 9, 9), rn(6, 4, 3, 3)], [rn(3, 5, 12, 11), rn(2, 5, 3, 3)]],
    ),
    "integer convolution": (
        lambda x, w: F.conv1d(x, w, stride=2, padding=1),
        [[ri(2, 4, 9), ri(6, 4, 3)], [ri(3, 5, 12), ri(2, 5, 3)]],
    ),
    "varying transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=2),
        [[rn(2, 4, 5, 5), rn(4, 3, 3, 3)]],
    ),
    "double attention": (
        lambda q, k, v, m: tuple(F.scaled_dot_product_attention(q, k, v, a, is_causal=a is None) for a in (m > 0, None)),
        [[*(rn(2, 4, 9, 8).double() for _ in range(3)), rn(9, 9)], [*(rn(1, 3, 5, 6).double() for _ in range(3)), rn(5, 5)]],
    ),
    "largest at": (
        lambda x: (
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
            F.max_unpool2d(*F.max_pool2d(x, 2, 2, return_indices=True), 2),
        ),
        [[rn(2, 3, 8, 6)], [rn(1, 2, 6, 10)]],
    ),
    "soft targets": (
        lambda x, t, y: (F.cross_entropy(x, t.softmax(1)), F.cross_entropy(x, y, label_smoothing=0.2)),
        [[rn(3, 5), rn(3, 5), ri(3)], [rn(7, 6), rn(7, 6), ri(7)]],
    ),
    "complex": (
        lambda x, y: (x * y + 1j, x / y, x @ y, x.abs(), x.angle(), x.conj(), x.sum(0), x.exp(), x.sqrt(), x.log()),
        [[cn(5, 5), cn(5, 5)], [cn(4, 4).t(), cn(4, 4).conj()]],
    ),
    "fourier": (
        lambda x: (torch.fft.rfft(x), torch.fft.irfft(torch.fft.rfft(x), n=x.shape[1]), torch.fft.fft2(x), torch.fft.hfft(x)),
        [[rn(3, 6)], [rn(4, 9)]],
    ),
    "decomposed": (
        lambda x: (torch.block_diag(x, x), torch.renorm(x, 2, 0, 1.0), torch.trapezoid(x)),
        [[rn(3, 5)], [rn(4, 2)]],
    ),
    "by index": (
        lambda x, i, y: (x.index_reduce(0, i, y, "mean"), x.put(i, y[:, 0]), x.index_fill(1, i - 1, 3.0)),
        [[rn(5, 5), torch.tensor([1, 4, 0]), rn(3, 5)], [rn(6, 6), torch.tensor([5]), rn(1, 6)]],
    ),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=EXPORTED_FOR_ALL_SIZES) if n == "soft targets" else n for n in CASES])
def test_case(name: str) -> None:
    f, sets = CASES[name]
    check(f, *sets)


@pytest.mark.parametrize("name", ["median", "running", "bits", "strided", "complex", "varying channels", "largest at"])
def test_compiled(name: str) -> None:
    f, sets = CASES[name]
    compiled(f, *sets)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", pytest.param("border", marks=pytest.mark.slow), "reflection"])
def test_grid_sample(mode: str, padding: str) -> None:
    for corners in (False, True):

        def f(x: torch.Tensor, grid: torch.Tensor, corners: bool = corners) -> torch.Tensor:
            return F.grid_sample(x, grid, mode, padding, corners)

        check(f, [rn(2, 3, 5, 4), 1.5 * rn(2, 6, 7, 2)], [rn(1, 1, 3, 8), 1.5 * rn(1, 2, 2, 2)])


NEGATIVE: dict[str, Any] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_negative_indices_fail_the_call_and_name_the_operator(name: str) -> None:
    x, good = rn(4, 3), torch.tensor([3, 0])
    model = dhlo.compile(export(NEGATIVE[name], (x, good)))
    torch.testing.assert_close(model(x, good), NEGATIVE[name](x, good))
    for bad in (-1, 4):
        with pytest.raises(dhlo.ContractError, match=rf"(?s){name}.*index out of range.*{bad}"):
            model(x, torch.tensor([0, bad]))


def test_negative_indices_count_from_the_end_in_indexing() -> None:
    compiled(lambda x, i: (x[i], x.take(i), x.index_put((i,), x[:2])), [rn(4, 3), torch.tensor([-1, 0])])


def test_views_in_place() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        y.transpose_(0, 1)
        z = y.unsqueeze_(0)
        y.add_(1)
        z.squeeze_(0)
        return y * 2, z

    check(f, [rn(3, 5)], [rn(4, 2)])


def test_a_reduction_that_another_group_reads_through() -> None:
    sets = [[rn(3), rn(4, 3), torch.tensor(2)], [rn(5), rn(7, 5), torch.tensor(0)]]
    compiled(lambda x, w, t: F.cross_entropy(F.linear(x, w), t), *sets)


def test_dtype_that_is_not_supported() -> None:
    class Unsigned(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.uint32)

    with pytest.raises(dhlo.CompileError, match=r"tensors of uint32 are not supported\n  hint: convert to one of bool"):
        dhlo.compile(torch.export.export(Unsigned(), (torch.randn(3),)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_with_padding_counted_from_the_end(mode: str) -> None:
    class Bags(torch.nn.Module):
        def forward(self, index: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return F.embedding_bag(index, table, offsets, mode=mode, padding_idx=-1)

    n, bags, table = torch.export.Dim("n", min=1, max=1000), torch.export.Dim("bags", min=1, max=100), torch.randn(10, 5)
    example = (torch.randint(0, 10, (6,)), torch.tensor([0, 2, 4]), table)
    model = dhlo.compile(torch.export.export(Bags(), example, dynamic_shapes=({0: n}, {0: bags}, None)))
    for count, offsets in ((5, [0, 3]), (7, [0, 0, 2, 7]), (1, [0]), (40, [0, 5, 9, 9, 30, 40])):
        args = (torch.randint(8, 10, (count,)), torch.tensor(offsets), table)
        torch.testing.assert_close(model(*args), Bags()(*args))


def test_softmax_of_rows_with_special_values() -> None:
    inf, nan = torch.inf, torch.nan
    special = [[1.0, nan, 2.0], [-inf, -inf, -inf], [inf, 1.0, -inf], [nan, nan, nan], [-inf, nan, 0.0], [88.0, -1e30, 3e38]]
    rows = torch.tensor(special)

    def f(x: torch.Tensor) -> Any:
        parts = (x.softmax(-1), x.log_softmax(-1), x.t().softmax(0), A._safe_softmax(x, -1), x.logsumexp(-1))
        parts += (x.amax(-1), x.amin(-1))
        gates = (1 + x.tanh(), x.sigmoid(), F.gelu(x, approximate="tanh"))
        return *parts, *gates

    compiled(f, [rows], [rows.repeat(1, 7)], [rows.repeat(3, 40)], [rows[:1]])


@pytest.mark.parametrize("f", [torch.sqrt, torch.log])
def test_complex_branches(f: Any) -> None:
    """Close to the branch cut and to the unit circle nothing cancels; infinities, zeros' signs and NaN are as in C."""
    program = import_fn(lambda x: f(x), [cn(5)])
    torch.manual_seed(0)
    x = torch.cat([cn(4000), torch.polar(torch.ones(4000), 7 * torch.rand(4000))])
    (got,) = run(program, (x,))
    exact = f(x.to(torch.complex128))
    assert ((got - exact).abs() <= 5e-7 * exact.abs() + 1e-7 * (f is torch.log)).all()
    values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-38, -1e-30]
    special = torch.tensor([complex(a, b) for a in values for b in values], dtype=torch.complex64)
    (got,) = run(program, (special,))
    parts, want = torch.view_as_real(got), torch.view_as_real(f(special))
    torch.testing.assert_close(parts, want, rtol=1e-6, atol=0, equal_nan=True)
    assert (want.isnan() | (parts.signbit() == want.signbit())).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operators_that_round_once(dtype: torch.dtype) -> None:
    """Reduced floats within half a unit in the last place of double precision, as ATen's kernels compute in f32."""
    exact = dtype == torch.float16  # products of bf16 are bf16 before anything is added

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, mu: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
        blends = [torch.lerp(x, y, 0.4), torch.lerp(x, y, 0.7), torch.lerp(x, y, z)]
        blends += [torch.addcmul(x, y, z, value=0.25), torch.addcdiv(x, y, z, value=0.25), F.batch_norm(x, mu, var, mu, var)]
        blends += [torch.add(x, y, alpha=0.3), torch.sub(x, y, alpha=1.7), torch.rsub(x, y, alpha=0.3)]
        blends += [torch.xlogy(x, z), torch.hypot(x, y), torch.logaddexp(x, y)]
        return [*blends, F.linear(x, y, mu), torch.addmm(mu, x, y, beta=0.75, alpha=1.25)] if exact else blends

    def inputs(n: int) -> list[torch.Tensor]:
        return [v.to(dtype) for v in (rn(n, n), rn(n, n), rn(n, n).abs() + 0.5, rn(n), rn(n).abs() + 0.5)]

    model = dhlo.compile(export(f, inputs(5)))
    for n in (5, 33, 2):
        args = inputs(n)
        for k, (got, want) in enumerate(zip(model(*args), f(*[a.double() for a in args]), strict=True)):
            unit = torch.finfo(dtype).eps
            assert ((got.double() - want).abs() <= 0.51 * unit * want.abs() + 1e-5).all(), k


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_hypotenuses_whose_squares_overflow_or_vanish(dtype: torch.dtype) -> None:
    most, least = (v**0.5 for v in (torch.finfo(dtype).max, torch.finfo(dtype).tiny))
    x = torch.tensor([3 * most, 3 * least, 0, math.inf, 1, math.nan, -3], dtype=dtype)
    y = torch.tensor([4 * most, 4 * least, 0, 1, math.nan, -math.inf, 4], dtype=dtype)
    got = dhlo.compile(export(torch.hypot, [x, y]))(x, y)
    torch.testing.assert_close(got, torch.hypot(x, y), equal_nan=True)


def test_averages_of_a_negative_divisor() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.avg_pool3d(x, 2, 2, divisor_override=-2), F.avg_pool2d(x[0], 3, 1, 1, divisor_override=-5)]

    model = dhlo.compile(export(f, [rn(2, 2, 4, 6, 5)]))
    for shape in ((2, 2, 4, 6, 5), (3, 4, 5, 7, 9)):
        x = rn(*shape)
        torch.testing.assert_close(model(x), f(x))


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_exponentials_of_reduced_matrices(dtype: torch.dtype) -> None:
    """Where PyTorch's own steps overflow, the result needn't."""
    a = (torch.linspace(-9, 9, 25).reshape(1, 5, 5)).to(dtype)
    want = torch.linalg.matrix_exp(a.double()).to(dtype)
    model = dhlo.compile(export(torch.linalg.matrix_exp, [a]))
    torch.testing.assert_close(model(a), want)


def test_constants_are_of_their_dtype() -> None:
    """A constant tensor has its dtype's precision; a scalar beside a tensor has its own."""

    def f(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        h, b = torch.full((3,), 0.1, dtype=torch.float16), torch.full((2,), 1 / 3, dtype=torch.bfloat16)
        e = torch.full((2,), 19).to(torch.float8_e5m2)
        wide = torch.full((2,), 0.1).double()
        return [wide, x[:2] + h.float()[:2], x[:2] + b.float(), x[:2] + e.float(), x.bfloat16() * 0.1, x[:2] + b.to(torch.float16)]

    model = dhlo.compile(export(f, [rn(5), 3]))
    for n in (5, 2, 70):
        x = rn(n)
        for got, want in zip(model(x, 3), f(x, 3), strict=True):
            assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_layers_in_reduced_floats(dtype: torch.dtype) -> None:
    """The fused loss takes the layer's result in f32, as PyTorch's does."""

    def f(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.linear_cross_entropy(x, w, t, reduction="none", options=options)

    options = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options").LinearCrossEntropyOptions(batch_chunk_size=2)
    for n in (4, 7):  # torch.export fixes the sizes
        x, w, t = (4 * rn(n, 6)).to(dtype), (3 * rn(9, 6)).to(dtype), torch.arange(n) % 9
        model = dhlo.compile(export(f, [x, w, t], (None, None, None)))
        want = F.cross_entropy(F.linear(x.double(), w.double()), t, reduction="none")
        torch.testing.assert_close(model(x, w, t).double(), want, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_differences_of_order_zero_join_nothing() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        return [torch.diff(v, n, 0, y.to(v.dtype), append=y.to(v.dtype)) for v in (x, z) for n in (0, 1, 2)]

    compiled(f, [rn(5, 4), rn(2, 4), cn(3, 4)], [rn(3, 7), rn(1, 7), cn(9, 7)])
