"""Matrix factorisations and what rests on them, as loops of PyTorch operators over columns; traced where a program uses them.

Matrices are small where models use these, so each step works on whole matrices, of which it changes a part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dhlo.frontend.compat import aten as A
from dhlo.frontend.compat import higher_order, present

__all__ = ["LINEAR_ALGEBRA"]

Tensor = torch.Tensor


def _columns(body: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...], *given: Tensor) -> tuple[Tensor, ...]:
    """State after body(k, *state, *given) for each k below the size of the last dim of the last of the state; k is a tensor."""
    if any(x.is_complex() for x in state):
        raise NotImplementedError("complex matrices")
    if isinstance(state[-1].shape[-1], int) and state[-1].shape[-1] == 0:
        return state
    dense: Any = lambda xs: tuple(x.clone(memory_format=torch.contiguous_format) for x in xs)  # strides have to stay the same

    def more(k: Tensor, *values: Tensor) -> Tensor:
        return k < values[len(state) - 1].shape[-1]

    def step(k: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (k + 1, *dense(body(k, *values)))

    start = (torch.zeros((), dtype=torch.int64), *dense(state))
    return tuple(higher_order.while_loop(more, step, start, dense(given))[1:])


def _factored(a: Tensor, rest: Tensor) -> tuple[Tensor, ...]:
    """LU of matrices a [B, R, C] with partial pivoting: (factors [B, R, C], what the same steps make of `rest` [B, R, M], pivots
    [B, min(R, C)] counted from 1, signs of the permutations [B])."""
    n = a.shape[-1]

    def step(k: Tensor, m: Tensor, sign: Tensor, pivots: Tensor) -> tuple[Tensor, ...]:
        rows, cols = torch.arange(m.shape[1]), torch.arange(m.shape[2])
        column = m.index_select(2, k.reshape(1))
        best = torch.where(rows >= k, column.squeeze(2).abs(), -1.0).argmax(1, keepdim=True)
        order = torch.where(rows == k, best, torch.where(rows == best, k, rows))
        m = m.gather(1, order.unsqueeze(2).expand(m.shape))
        row = m.index_select(1, k.reshape(1))
        pivot = row.index_select(2, k.reshape(1))
        below = (rows > k).unsqueeze(1)
        factor = torch.where(below, m.index_select(2, k.reshape(1)) / torch.where(pivot == 0, 1.0, pivot), 0.0)
        m = torch.where(below & (cols == k), factor, m - factor * torch.where(cols > k, row, 0.0))
        pivots = torch.where(torch.arange(pivots.shape[1]) == k, (best + 1).to(torch.int32), pivots)
        return m, torch.where(best.squeeze(1) == k, sign, -sign), pivots

    pivots = torch.zeros(a.diagonal(dim1=-2, dim2=-1).shape, dtype=torch.int32)
    m, sign, pivots = _columns(step, (torch.cat([a, rest], 2), torch.ones(a.shape[:1], dtype=a.dtype), pivots))
    return m[:, :, :n], m[:, :, n:], pivots, sign


def _substituted(a: Tensor, b: Tensor, upper: bool) -> Tensor:
    """x of a x = b, for triangular a [B, N, N] and b [B, N, M]."""

    def step(i: Tensor, x: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        k = a.shape[1] - 1 - i if upper else i
        rows = torch.arange(a.shape[1]).unsqueeze(1)
        column, row = a.index_select(2, k.reshape(1)), x.index_select(1, k.reshape(1))
        row = row / column.index_select(1, k.reshape(1))
        later = rows < k if upper else rows > k
        return torch.where(rows == k, row, x - torch.where(later, column, 0.0) * row), a

    return _columns(step, (b, a))[0]


def _batches(*matrices: Tensor) -> list[Tensor]:
    """As [B, rows, columns]."""
    dense = [m.clone(memory_format=torch.contiguous_format) for m in matrices]
    return [m.unsqueeze(0) if m.dim() == 2 else m if m.dim() == 3 else m.flatten(0, -3) for m in dense]


def _lead(a: Tensor, b: Tensor) -> Any:
    """The sizes before rows and columns that two matrices have together."""
    return torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]


def _apart(x: Tensor, lead: Any) -> Tensor:
    """[B, ...] as [*lead, ...]."""
    return x.select(0, 0) if len(lead) == 0 else x if len(lead) == 1 else x.view(*lead, *x.shape[1:])


def _info(factors: Tensor, lead: Any) -> Tensor:
    """The number of the first pivot that is 0, or 0."""
    zero = torch.nn.functional.pad(factors.diagonal(dim1=-2, dim2=-1) == 0, (0, 1))  # never of nothing
    numbers = torch.where(zero, torch.arange(1, zero.shape[-1] + 1), zero.shape[-1] + 1).amin(-1)
    return _apart(torch.where(zero.any(-1), numbers, 0).to(torch.int32), lead)


def _lu_factor(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    (m,) = _batches(a)
    factors, _, pivots, _ = _factored(m, m[:, :, :0])
    return _apart(factors, a.shape[:-2]), _apart(pivots, a.shape[:-2]), _info(factors, a.shape[:-2])


def _det(a: Tensor) -> tuple[Tensor, ...]:
    (m,) = _batches(a.mT)
    factors, _, pivots, sign = _factored(m, m[:, :, :0])
    result = sign * factors.diagonal(dim1=-2, dim2=-1).prod(-1)
    return tuple(_apart(x, a.shape[:-2]) for x in (result, factors, pivots))


def _slogdet(a: Tensor) -> tuple[Tensor, ...]:
    (m,) = _batches(a.mT)
    factors, _, pivots, sign = _factored(m, m[:, :, :0])
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    sign, logs = sign * diagonal.sign().prod(-1), diagonal.abs().log().sum(-1)
    return tuple(_apart(x, a.shape[:-2]) for x in (sign, logs, factors, pivots))


def _solved(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    factors, done, pivots, _ = _factored(a, b)
    return _substituted(factors, done, True), factors, pivots


def _inverse(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    (m,) = _batches(a)
    x, factors, _ = _solved(m, torch.eye(m.shape[-1], dtype=m.dtype).expand(m.shape))
    return _apart(x, a.shape[:-2]), _info(factors, a.shape[:-2])


def _solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    if not left:
        a, right = a.mT, right.mT
    lead = _lead(a, right)
    m, r = _batches(a.expand(*lead, *a.shape[-2:]), right.expand(*lead, *right.shape[-2:]))
    x, factors, pivots = _solved(m, r)
    info = _info(factors, lead)
    x, factors, pivots = (_apart(v, lead) for v in (x, factors, pivots))
    x = x if left else x.mT
    return x.select(-1, 0) if vector else x, factors, pivots, info


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    lead = _lead(a, b)
    if unitriangular:
        a = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1) - 1)
    m, r = _batches(a.expand(*lead, *a.shape[-2:]), b.expand(*lead, *b.shape[-2:]))
    return _apart(_substituted(m, r, upper), lead)


def _cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    (m,) = _batches(a.mT if upper else a)

    def step(k: Tensor, info: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        rows = torch.arange(m.shape[1])
        column = m.index_select(2, k.reshape(1))
        pivot = column.index_select(1, k.reshape(1))
        root = pivot.sqrt()
        factor = torch.where((rows > k).unsqueeze(1), column / root, 0.0)
        own = torch.where((rows == k).unsqueeze(1), root, factor)
        m = torch.where((rows >= k).unsqueeze(1) & (rows == k), own, m - factor * factor.mT)
        bad = ~(pivot > 0).flatten() & (info == 0)
        return torch.where(bad, k + 1, info), m

    info, m = _columns(step, (torch.zeros(m.shape[:1], dtype=torch.int64), m))
    factor = _apart(m.tril(), a.shape[:-2])
    return factor.mT if upper else factor, _apart(info.to(torch.int32), a.shape[:-2])


LINEAR_ALGEBRA: dict[Any, Callable[..., Any]] = present(
    {
        A.linalg_lu_factor_ex.default: _lu_factor,
        A._linalg_det.default: _det,
        A._linalg_slogdet.default: _slogdet,
        A.linalg_inv_ex.default: _inverse,
        A._linalg_solve_ex.default: _solve,
        A.linalg_solve_triangular.default: _solve_triangular,
        A.linalg_cholesky_ex.default: _cholesky,
        A.cholesky.default: lambda a, upper=False: _cholesky(a, upper=upper)[0],
    }
)
