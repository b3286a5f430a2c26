"""Functions, reductions and selections of complex tensors, against eager PyTorch: values, branch cuts, sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import dhlo
from tests.frontend.helpers import export, import_fn, run

C64, C128 = torch.complex64, torch.complex128
FUNCTIONS = (
    "sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh log1p log2 log10 exp2 expm1 rsqrt sigmoid sinc sgn square "
    "reciprocal sqrt exp log"
).split()


def plane(dtype: torch.dtype) -> torch.Tensor:
    """Points in all quadrants, on the axes and on both sides of branch cuts, near 0 and near 1, small and large."""
    real = torch.tensor([-30.0, -2.5, -1.0, -0.6, -1e-5, -0.0, 0.0, 1e-5, 0.3, 1.0, 1.7, 30.0], dtype=torch.float64)
    re, im = torch.meshgrid(real, real, indexing="ij")
    return torch.complex(re.flatten(), im.flatten()).to(dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pytorchs(name: str) -> None:
    f = getattr(torch, name)
    for dtype, tolerance in ((C64, 2e-5), (C128, 1e-11)):
        x = plane(dtype)
        (got,) = run(import_fn(f, (x,)), [x])
        want = f(x)
        known = torch.isfinite(want) & (want.abs() < 1e30)
        assert got.dtype == dtype
        torch.testing.assert_close(got[known], want[known], rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("power", [0, 1, 2, 3, -1, -2, 0.5, 2.5, 1 - 0.5j])
def test_powers(power: Any) -> None:
    x = torch.randn(7, dtype=C64)
    for f in (lambda z: z**power, lambda z: z.real.abs() ** z, lambda z: power**z, lambda z: torch.float_power(z, power)):
        (got,) = run(import_fn(f, (x,)), [x])
        torch.testing.assert_close(got, f(x), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_powers_of_zero() -> None:
    f, zero = torch.pow, torch.zeros(4, dtype=C64)
    for y in (torch.tensor([2, 1 + 1j, -1 + 2j, 2j]), torch.tensor([0, -0.5, 0.1, 3])):
        (got,) = run(import_fn(f, (zero, y)), [zero, y])
        torch.testing.assert_close(got, f(zero, y), equal_nan=True)


CASES: dict[str, Callable[..., Any]] = {}


def case(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of complex z and w [n, m] and real x [n, m]; returns tensors."""
    CASES[f.__name__] = f
    return f


@case
def reductions(z: Any, w: Any, x: Any) -> Any:
    whole = z.prod(), z.prod(1), z.cumprod(0), z.logsumexp(1), z.logcumsumexp(0), z.norm(), z.trace()
    return *whole, torch.linalg.vector_norm(z, 3, 1), torch.linalg.vector_norm(z, float("inf"), 0)


@case
def reductions_in_other_dtypes(z: Any, w: Any, x: Any) -> Any:
    sums = z.sum(0, dtype=C128), z.mean(1, dtype=C64), z.cumsum(1, dtype=C128), z.sum(1, dtype=torch.float64)
    return (
        *sums,
        z.prod(1, dtype=C128),
        x.sum(1, dtype=C64),
        x.prod(0, dtype=C128),
        x.cumsum(0, dtype=C64),
        w.cumprod(1, dtype=C128),
    )


@case
def variances(z: Any, w: Any, x: Any) -> Any:
    return z.var(), z.var(1), z.std(0, correction=0, keepdim=True), *torch.var_mean(z, 1), *torch.std_mean(z, correction=2)


@case
def conditions(z: Any, w: Any, x: Any) -> Any:
    holes = torch.where(x > 0, z, 0)
    truth = torch.logical_not(holes), torch.logical_and(holes, w), torch.logical_xor(holes, x), holes.any(1), holes.all()
    return *truth, holes.count_nonzero(1), holes.nonzero(), torch.isfinite(z / holes), torch.isclose(z, z * (1 + 1e-7))


@case
def chosen(z: Any, w: Any, x: Any) -> Any:
    return z[x > 0], z.masked_select(x < 0), z[:, x[0] > 0], z.take(torch.tensor([0])), z[torch.arange(1), x[:1].argmax(1)]


@case
def arrangements(z: Any, w: Any, x: Any) -> Any:
    padded = torch.nn.functional.pad(z, (1, 2), value=2), torch.constant_pad_nd(z, (0, 1), 1 - 2j), z.rot90(), z.tile(2, 1)
    joined = torch.hstack([z, x]), torch.column_stack([w, z]), torch.broadcast_tensors(z, x)[1], torch.diag_embed(z), z.diff()
    return *padded, *joined, torch.meshgrid(z[0], w[1], indexing="ij")[1], torch.trapezoid(z, dx=0.5)


@case
def conversions(z: Any, w: Any, x: Any) -> Any:
    real = z.to("cpu", torch.float64), z.to(x), z.type_as(x.double()), z.to("cpu", torch.bool)
    other = x.to(z), x.double().to("cpu", C64), z.to("cpu", C128), x.type_as(z.to(C128)), z.to("cpu")
    filled = torch.full(x.shape, 1 - 2j), torch.full((2, x.shape[1]), 3 + 1j, dtype=C128)
    sized = torch.full((3,), x.shape[0], dtype=C64), torch.full_like(x, x.shape[1], dtype=C128)
    parts = [
        torch.full((2,), complex(*c), dtype=d) for c, d in (((3, 0), torch.float32), ((0, 1), torch.bool), ((0, 0), torch.bool))
    ]
    return *real, *other, *filled, *sized, *parts, z.new_full((2,), x.shape[0] * 0.5)


@case
def products(z: Any, w: Any, x: Any) -> Any:
    linear = (torch.nn.functional.linear(z, w, z[:, 0].mean().expand(w.shape[0])), torch.inner(z, w))
    batch = torch.addbmm(z @ w.mT, z.expand(3, *z.shape), w.mT.expand(3, *w.mT.shape), alpha=0.5)
    return *linear, batch, torch.nn.functional.l1_loss(z, w), torch.linalg.vecdot(z, w)


@case
def convolutions(z: Any, w: Any, x: Any) -> Any:
    taps = torch.stack([z[0, :2], w[1, :2]]).unsqueeze(1)
    same = torch.nn.functional.conv1d(z.unsqueeze(1), taps, w[0, :2], padding="same")
    return (
        same,
        torch.nn.functional.conv1d(x.unsqueeze(1) + 0j, taps),
        torch.nn.functional.conv_transpose1d(z.unsqueeze(1), taps[:1]),
    )


def arguments(n: int, m: int) -> list[torch.Tensor]:
    torch.manual_seed(n * 100 + m)
    return [torch.randn(n, m, dtype=C64), torch.randn(n, m, dtype=C64), torch.randn(n, m)]


@pytest.mark.parametrize("name", CASES)
def test_cases_match_at_all_sizes(name: str) -> None:
    f, fixed = (
        CASES[name],
        name in ("variances", "products", "reductions_in_other_dtypes"),
    )  # torch.export fixes some sizes of these
    model = dhlo.compile(export(f, arguments(5, 6)))
    for size in ((5, 6), (3, 4)) if fixed else ((5, 6), (3, 4), (4, 17), (33, 9)):
        args = arguments(*size)
        model = dhlo.compile(export(f, args)) if fixed else model
        for got, want in zip(tree_leaves(model(*args)), tree_leaves(f(*args)), strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)


def test_halves_of_other_dtypes_in_any_layout() -> None:
    def f(x: torch.Tensor, z: torch.Tensor) -> Any:
        return x.chalf(memory_format=torch.channels_last), z.chalf()

    model = dhlo.compile(export(f, (torch.randn(2, 3, 4, 5), torch.randn(2, dtype=C64))))
    for shape in ((2, 3, 4, 5), (1, 1, 1, 1), (3, 1, 2, 1)):
        args = torch.randn(shape), torch.randn(shape[0], dtype=C64)
        for got, want in zip(model(*args), f(*args), strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got.to(C64), want.to(C64))


def test_halves() -> None:
    """Complex numbers of two f16."""

    def f(h: torch.Tensor, x: torch.Tensor) -> Any:
        return h.to(C64) * 2, h.real + 1, x.chalf(), torch.complex(x.half(), x.half()), h.to(torch.float32)

    args = torch.randn(5, 3, dtype=C64).to(torch.complex32), torch.randn(5, 3)
    model = dhlo.compile(export(f, args))
    for n in (5, 1, 0, 40):
        args = torch.randn(n, 3, dtype=C64).to(torch.complex32), torch.randn(n, 3)
        for got, want in zip(model(*args), f(*args), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            assert torch.equal(torch.view_as_real(got), torch.view_as_real(want)) if got.is_complex() else torch.equal(got, want)


def test_random_numbers_have_both_parts() -> None:
    def f(z: torch.Tensor) -> Any:
        return z.clone().uniform_(2, 3), z.clone().normal_(1, 2)

    uniform, normal = dhlo.compile(export(f, (torch.zeros(4, 3, dtype=C64),)))(torch.zeros(300, 100, dtype=C64))
    parts = torch.view_as_real(uniform)
    assert parts.min() >= 2 and parts.max() <= 3 and not torch.equal(uniform.real, uniform.imag)
    assert (normal.mean() - (1 + 1j)).abs() < 0.1 and abs(float(normal.std()) - 2) < 0.1
    assert abs(float(normal.real.std() / normal.imag.std()) - 1) < 0.1


def test_real_tensors_stay_real_where_complex_ones_give_their_shape() -> None:
    z, x = torch.randn(3, 4, dtype=C64), torch.randn(3, 1)

    def f(z: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x.expand_as(z)
        return wide, torch.nn.functional.normalize(z, 2.0, -1), (wide * 2).reshape(12).view_as(z), wide.reshape(4, 3).reshape_as(z)

    for got, want in zip(run(import_fn(f, (z, x)), [z, x]), f(z, x), strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)


def test_numbers_are_true_by_either_part() -> None:
    z = torch.tensor([[1j, 0j], [1 + 0j, 2j], [0j, -0j]], dtype=C64)

    def f(z: torch.Tensor) -> Any:
        return z.to(torch.bool), z.bool().any(1)

    for got, want in zip(dhlo.compile(export(f, (z,)))(z), f(z), strict=True):
        assert torch.equal(got, want)
