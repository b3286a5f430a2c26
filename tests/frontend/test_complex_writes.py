"""Complex tensors written in place: operators, parts, views of every kind, arguments and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch.utils._pytree import tree_leaves

import dhlo
from tests.frontend.helpers import export

C64 = torch.complex64
CASES: dict[str, Callable[..., Any]] = {}


def case(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of z [n, m], w [m], both complex, and a real x [n, m, 2]; returns tensors."""
    CASES[f.__name__] = f
    return f


@case
def operators(z: Any, w: Any, x: Any) -> Any:
    y = z.clone()
    y.add_(w).mul_(x[..., 0]).sub_(z, alpha=2).neg_().div_(2 + 1j)
    y += 1j
    y *= 1 - 2j
    return y, y.clone().copy_(w), y.clone().copy_(x[..., 1]), y.clone().zero_(), y.clone().fill_(3 - 1j), y.clone().conj_physical_()


@case
def parts(z: Any, w: Any, x: Any) -> Any:
    y = z.clone()
    y[0] = w
    y[:, 1:] *= 2
    y[-1, 0] = 1j
    y[:, 0] = 5
    y.select(1, 0).add_(w[0])
    return y, y.t()


@case
def indexed(z: Any, w: Any, x: Any) -> Any:
    y, at = z.clone(), torch.arange(z.shape[0] - 1)
    y[at] = w
    y.index_put_((at, at * 0), w[0], accumulate=True)
    y[x[..., 0] > 0.3] = 2j
    y.masked_fill_(x[..., 1] > 1, 1 + 1j)
    y.index_add_(0, at, z[:-1]).index_copy_(0, at[:1], z[1:2]).index_fill_(0, at[:1], 7)
    return y, y.scatter_(1, at[:, None], z), y.clone().scatter_add_(0, at[None] * 0, z)


@case
def real_and_imaginary(z: Any, w: Any, x: Any) -> Any:
    y = z.clone()
    re, im = y.real, y.imag
    y.real.copy_(x[..., 0])
    y.imag.mul_(2)
    y[0].imag = 4
    torch.view_as_real(y)[..., 1].sub_(1)
    y.mul_(w)
    return y, re, im, torch.view_as_real(y)


@case
def views(z: Any, w: Any, x: Any) -> Any:
    y = z.clone()
    seen = y.t(), y.conj(), y.unsqueeze(0)[..., 0], y.conj().resolve_conj()
    for part in y[:, :2].unbind(1):
        part.mul_(1j)
    y.transpose(0, 1)[0].imag.zero_()
    y[:2, :2].diagonal().fill_(9)
    y.resolve_conj().mul_(2)
    return y, *seen


@case
def of_real_memory(z: Any, w: Any, x: Any) -> Any:
    y = x.clone()
    v = torch.view_as_complex(y)
    row = v[0]
    v.mul_(w)
    y[..., 1].add_(1)
    row.copy_(w)
    return y, v, row, torch.view_as_complex(y.mul_(2)).abs()


@case
def moved(z: Any, w: Any, x: Any) -> Any:
    y = z.clone()
    return y.unsqueeze_(0).transpose_(0, 1).mul_(2), y.squeeze_(1), y.t_().add_(1j)


@case
def wider(z: Any, w: Any, x: Any) -> Any:
    y = torch.zeros_like(z, dtype=torch.complex128)
    y[:, 1:] = z[:, 1:]
    y += w
    return y, z.new_zeros(2, 3).copy_(z[:1, :1]), torch.full_like(z, 2j)


SIZES = [(4, 5), (3, 3), (7, 19)]


def arguments(n: int, m: int) -> list[torch.Tensor]:
    return [torch.randn(n, m, dtype=C64), torch.randn(m, dtype=C64), torch.randn(n, m, 2)]


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    model = dhlo.compile(export(CASES[name], arguments(*SIZES[0])))
    for size in SIZES:
        args = arguments(*size)
        for got, want in zip(tree_leaves(model(*args)), tree_leaves(CASES[name](*[a.clone() for a in args])), strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want.resolve_conj(), rtol=1e-4, atol=1e-5)


def test_through_a_conjugate() -> None:
    """At one size: torch.export fixes them here."""

    def f(z: torch.Tensor) -> Any:
        y = z.clone()
        y.conj()[0].add_(2 + 3j)
        y.conj().imag.mul_(3)
        return y, y.conj()

    z = torch.randn(4, 5, dtype=C64)
    for got, want in zip(dhlo.compile(export(f, (z,)))(z), f(z), strict=True):
        torch.testing.assert_close(got, want.resolve_conj())


def test_branches_and_loops() -> None:
    def f(z: torch.Tensor, x: torch.Tensor) -> Any:
        (chosen, size) = torch.cond(x.sum() > 0, lambda a: (a * 2j, a.abs()), lambda a: (a + 1, a.abs() * 2), (z,))
        return chosen, size, *scan(lambda c, row: (c * 0.5j + row, c * row), torch.zeros_like(z[0]), z, dim=0)

    def g(z: torch.Tensor, x: torch.Tensor) -> Any:  # scan wants torch.compile
        total, products = torch.zeros_like(z[0]), []
        for row in z:
            products.append(total * row)
            total = total * 0.5j + row
        return (z * 2j, z.abs()) if x.sum() > 0 else (z + 1, z.abs() * 2), total, torch.stack(products)

    auto = torch.export.Dim.AUTO
    model = dhlo.compile(export(f, (torch.randn(3, 4, dtype=C64), torch.randn(2)), ({0: auto}, None)))
    for n, x in ((3, torch.ones(2)), (5, -torch.ones(2)), (1, torch.ones(2))):
        z = torch.randn(n, 4, dtype=C64)
        for got, want in zip(model(z, x), tree_leaves(g(z, x)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_arguments_and_state() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3, 4, dtype=torch.complex128))
            self.register_buffer("rows", torch.ones(5, 2, dtype=C64))
            self.register_buffer("kept", torch.tensor([1 + 1j, 2 - 1j]))

        def forward(self, z: torch.Tensor, x: torch.Tensor) -> Any:
            self.total.add_(z.sum())
            self.rows[1:3] = self.kept
            self.rows.imag[0] += 1
            z.mul_(2j)
            torch.view_as_complex(x)[0].copy_(z[0, 0])
            return z + 1, self.rows.sum(), self.total.abs()

    z, x = torch.randn(3, 4, dtype=C64), torch.randn(3, 2)
    eager, auto = Model(), torch.export.Dim.AUTO
    model = dhlo.compile(torch.export.export(Model(), (z, x), dynamic_shapes=({0: auto, 1: auto}, {0: auto})))
    for n, m in ((3, 4), (2, 9), (6, 2)):
        z, x = torch.randn(m, n, dtype=C64).t(), torch.randn(n, 2)
        ours = z.clone(), x.clone()
        for got, want in zip((*model(*ours), *ours), (*eager(z, x), z, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        for name in ("total", "rows"):
            torch.testing.assert_close(model.read_state(name), getattr(eager, name), rtol=1e-5, atol=1e-5)
    model.reset_state()
    assert torch.equal(model.read_state("rows"), torch.ones(5, 2, dtype=C64))
