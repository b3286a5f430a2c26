"""What rests on factorisations: inverses, systems of equations, pseudo-inverses, the exponential.

As PyTorch code that is traced where a program uses it. The factorisations themselves have lowerings (frontend/aten/factor.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dhlo.frontend.compat import aten as A
from dhlo.frontend.compat import higher_order, present

__all__ = ["LINEAR_ALGEBRA"]

Tensor = torch.Tensor
L = torch.linalg
_least: Any = torch.sym_min
_most: Any = torch.sym_max


def _repeated(
    more: Callable[..., Tensor], step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...], *given: Tensor
) -> Any:
    """State after repeating `step` while `more` holds, both of (k, *state, *given), k the number of the turn as a tensor."""
    dense: Any = lambda xs: tuple(x.clone(memory_format=torch.contiguous_format) for x in xs)  # strides have to stay the same

    def body(k: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (k + 1, *dense(step(k, *values)))

    start = (torch.zeros((), dtype=torch.int64), *dense(state))
    return tuple(higher_order.while_loop(more, body, start, dense(given))[1:])


def _triangular(a: Tensor, b: Tensor, *, upper: bool, unitriangular: bool = False) -> Tensor:
    """As torch.linalg.solve_triangular, whose shape rule asks how a lies in memory: in columns, it needs no guard to answer."""
    columns = a.mT.clone(memory_format=torch.contiguous_format).mT
    x: Tensor = L.solve_triangular(columns, b, upper=upper, unitriangular=unitriangular)
    return x


# ---------------------------------------------------------------------------------------------------- LU
def _is_empty(size: Any) -> bool:
    return isinstance(size, int) and size == 0


def _order(pivots: Tensor, rows: Any) -> Tensor:
    """Where each of `rows` rows was before the exchanges that pivots [.., K] name: [.., rows]."""
    start = torch.arange(rows).expand(*pivots.shape[:-1], rows)
    if _is_empty(pivots.shape[-1]):
        return start

    def step(k: Tensor, order: Tensor, pivots: Tensor) -> tuple[Tensor, ...]:
        own = torch.arange(order.shape[-1])
        other = pivots.index_select(-1, k.reshape(1)).to(torch.int64) - 1
        return (order.gather(-1, torch.where(own == k, other, torch.where(own == other, k, own))),)

    def more(k: Tensor, order: Tensor, pivots: Tensor) -> Tensor:
        return k < pivots.shape[-1]

    (out,) = _repeated(more, step, (start,), pivots)
    order: Tensor = out
    return order


def _lu_unpack(lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Tensor, ...]:
    rows, k = lu.shape[-2], _least(lu.shape[-2], lu.shape[-1])
    p, lower, upper = lu.new_empty([0]), lu.new_empty([0]), lu.new_empty([0])
    if unpack_pivots:
        p = (torch.arange(rows).unsqueeze(-1) == _order(pivots, rows).unsqueeze(-2)).to(lu.dtype)
    if unpack_data:
        left = lu.narrow(-1, 0, k)
        lower = left.tril(-1) + torch.eye(rows, k, dtype=lu.dtype)
        upper = lu.narrow(-2, 0, k).triu()
    return p, lower, upper


def _lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, ...]:
    lu, pivots, _ = L.lu_factor_ex(a, pivot=pivot)
    return _lu_unpack(lu, pivots)


def _rows(b: Tensor, order: Tensor) -> Tensor:
    """The rows of b [.., N, M] in the order [.., N]."""
    lead = torch.broadcast_shapes(b.shape[:-2], order.shape[:-1])  # type: ignore[no-untyped-call]
    index = order.unsqueeze(-1).expand(*lead, *b.shape[-2:])
    return b.expand(*lead, *b.shape[-2:]).gather(-2, index)


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(lu, pivots, b.mH, adjoint=not adjoint).mH
    order = _order(pivots, lu.shape[-1])
    if adjoint:
        x = _triangular(lu.mH, b, upper=False)
        x = _triangular(lu.mH, x, upper=True, unitriangular=True)
        return _rows(x, order.argsort(-1))
    x = _triangular(lu, _rows(b, order), upper=False, unitriangular=True)
    return _triangular(lu, x, upper=True)


def _inverse(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info = L.lu_factor_ex(a)
    return _lu_solve(lu, pivots, torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)), info


def _solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    lead = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    lu, pivots, info = L.lu_factor_ex(a.expand(*lead, *a.shape[-2:]))
    x = _lu_solve(lu, pivots, right, left=left)
    return x.squeeze(-1) if vector else x, lu, pivots, info


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    m = a.mT if transpose else a
    x = _triangular(m, b, upper=upper != transpose, unitriangular=unitriangular)
    return x, a.expand(*lead, *a.shape[-2:]).clone()


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mH if upper else factor
    return _triangular(lower.mH, _triangular(lower, b, upper=False), upper=True)


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape), factor, upper)


# ---------------------------------------------------------------------------------------------------- singular values
def _eps(x: Tensor) -> float:
    return torch.finfo(x.dtype).eps


def _inverted(values: Tensor, keep: Tensor) -> Tensor:
    """Reciprocals of those to keep, zeros for others."""
    return torch.where(keep, 1 / torch.where(keep, values, 1), 0)


def _largest(values: Tensor) -> Tensor:
    """The greatest of [.., N], as [.., 1]; 0 of none."""
    return torch.nn.functional.pad(values, (0, 1)).amax(-1, keepdim=True)


def _limit(a: Tensor, sizes: Tensor, atol: Tensor | None, rtol: Tensor | None) -> Tensor:
    """Up to what [.., 1] singular values, or sizes of eigenvalues, of a count as 0."""
    relative = _eps(a) * _most(a.shape[-2], a.shape[-1])
    if atol is None:
        atol = torch.zeros((), dtype=torch.float64)
        rtol = atol + relative if rtol is None else rtol
    elif rtol is None:
        rtol = torch.where(atol > 0, 0.0, atol.new_zeros(()) + relative)
    return torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * _largest(sizes))


def _pinv(a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    if hermitian:
        values, v = L.eigh(a)
        sizes, u = values.abs(), v
    else:
        u, values, vh = L.svd(a, full_matrices=False)
        sizes, v = values, vh.mH
    limit = _limit(a, sizes, atol, rtol).to(sizes.dtype)
    inverse: Tensor = (v * _inverted(values, sizes > limit).unsqueeze(-2)) @ u.mH
    return inverse


def _rank(a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    """How many singular values aren't 0; of matrices without elements, PyTorch's own way asks for the first."""
    sizes = L.eigvalsh(a).abs() if hermitian else L.svdvals(a)
    rank: Tensor = (sizes > _limit(a, sizes, atol, rtol)).sum(-1)
    return rank


def _rank_by_numbers(a: Tensor, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False) -> Tensor:
    wide = [None if x is None else torch.full((), x, dtype=torch.float64) for x in (atol, rtol)]
    return _rank(a, atol=wide[0], rtol=wide[1], hermitian=hermitian)


def _rank_above(a: Tensor, tol: float | Tensor, hermitian: bool = False) -> Tensor:
    atol = tol if isinstance(tol, torch.Tensor) else torch.full((), tol, dtype=torch.float64)
    return _rank(a, atol=atol, rtol=torch.zeros_like(atol), hermitian=hermitian)


def _least_of(values: Tensor) -> Tensor:
    """The least of [.., N]; infinity of none."""
    return torch.nn.functional.pad(values, (0, 1), value=math.inf).amin(-1)


def _cond(a: Tensor, p: Any = None) -> Tensor:
    """The condition; 0 of matrices without elements. (Of other norms, torch.export takes fixed sizes alone.)"""
    if p in (None, 2, -2):
        values = L.svdvals(a)
        most, least = _largest(values).squeeze(-1), _least_of(values)
        found = least / most if p == -2 else most / least
    elif _is_empty(a.shape[-1]):
        found = a.new_zeros(a.shape[:-2]).abs()
    else:
        inverse, info = L.inv_ex(a)
        inverse = inverse.masked_fill(info.unsqueeze(-1).unsqueeze(-1) > 0, math.inf)
        found = (L.matrix_norm(a, p) * L.matrix_norm(inverse, p)).nan_to_num(math.inf, math.inf, -math.inf)
    return torch.where(torch.zeros((), dtype=torch.int64) + a.shape[-1] * a.shape[-2] == 0, 0, found)


# ---------------------------------------------------------------------------------------------------- exponential
def _matrix_exp(a: Tensor) -> Tensor:
    """By scaling and squaring of Taylor's polynomial of degree 19, in double precision, as squaring multiplies errors."""
    n = a.shape[-1]
    if a.dtype not in (torch.float64, torch.complex128):
        return _matrix_exp(a.to(torch.promote_types(a.dtype, torch.float64))).to(a.dtype)
    if _is_empty(n):
        return a.clone()
    if a.is_complex():  # as real matrices of twice the size
        re, im = a.real, a.imag
        x = _matrix_exp(torch.cat([torch.cat([re, -im], -1), torch.cat([im, re], -1)], -2))
        x = x.narrow(-1, 0, n)
        return torch.complex(x.narrow(-2, 0, n), x.narrow(-2, n, n))
    norm = torch.nn.functional.pad(a.abs().sum(-2), (0, 1)).amax(-1)
    halvings = norm.clamp(1, 2.0**60).log2().ceil().unsqueeze(-1).unsqueeze(-1)
    x = a * torch.exp2(-halvings)
    x2 = x @ x
    x3, x4 = x2 @ x, x2 @ x2
    unit = torch.eye(n, dtype=a.dtype)
    y: Any = 0.0
    for k in range(16, -1, -4):
        c = [1 / math.factorial(k + i) for i in range(4)]
        part = c[0] * unit + c[1] * x + c[2] * x2 + c[3] * x3
        y = part if k == 16 else part + x4 @ y

    def step(k: Tensor, y: Tensor, halvings: Tensor) -> tuple[Tensor, ...]:
        return (torch.where(k < halvings, y @ y, y),)

    def more(k: Tensor, y: Tensor, halvings: Tensor) -> Tensor:
        return (k < halvings).any()

    (out,) = _repeated(more, step, (y,), halvings)
    result: Tensor = out
    return result


LINEAR_ALGEBRA: dict[Any, Callable[..., Any]] = present(
    {
        A.lu_unpack.default: _lu_unpack,
        A.linalg_lu.default: _lu,
        A.linalg_lu_solve.default: _lu_solve,
        A.linalg_inv_ex.default: _inverse,
        A._linalg_solve_ex.default: _solve,
        A.triangular_solve.default: _triangular_solve,
        A.cholesky_solve.default: _cholesky_solve,
        A.cholesky_inverse.default: _cholesky_inverse,
        A.linalg_pinv.atol_rtol_tensor: _pinv,
        A.linalg_matrix_rank.default: _rank_above,
        A.linalg_matrix_rank.tol_tensor: _rank_above,
        A.linalg_matrix_rank.atol_rtol_tensor: _rank,
        A.linalg_matrix_rank.atol_rtol_float: _rank_by_numbers,
        A.linalg_cond.default: _cond,
        A.linalg_matrix_exp.default: _matrix_exp,
    }
)
