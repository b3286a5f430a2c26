"""Cases of factorisations, for tests/test_ops.py: what is unique in their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dhlo.ir.dialect import build
from dhlo.ir.ops import compute, factor
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.movement import Broadcast, Transpose
from dhlo.ir.types import DType, from_mlir
from tests.programs import Draw, Part, plain, t, within

__all__ = ["CASES"]

TOL = {"f32": 2e-4, "f64": 1e-9}


def positive(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Matrices with a large positive diagonal; their lower triangles are those of positive definite ones."""
    n = shape[-1]
    return torch.randn(shape, generator=g, dtype=d.torch) / (n + 1) + 2 * torch.eye(n, dtype=d.torch)


def in_place(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Pivots that exchange nothing."""
    return torch.arange(1, shape[-1] + 1).to(d.torch).expand(shape).clone()


def case(cls: Any, args: Sequence[tuple[Any, Draw]], after: Any = None, /, **attrs: Any) -> Part:
    def body(*values: Any) -> Sequence[Any]:
        made = build(cls, values, attrs).results
        return made if after is None else after(values, list(made))  # type: ignore[no-any-return]

    label = f"{cls.OPERATION_NAME} {[str(ty) for ty, _ in args]} {attrs}"
    return Part(args, body, tol=TOL, atol=2e-4 if str(args[0][0].dtype) == "f32" else 1e-9, label=label)


def op(cls: Any, *operands: Any, results: Any = None, **attrs: Any) -> Any:
    return build(cls, operands, attrs, results=results).results[0]


def scaled(v: Any, values: Any) -> Any:
    """Columns of v [.., N, N] times values [.., N]."""
    ty = from_mlir(v)
    dims = [*range(ty.rank - 2), ty.rank - 1]
    return op(ew.Mul, v, op(Broadcast, values, results=[ty], dims=dims))


def swapped(v: Any) -> Any:
    rank = from_mlir(v).rank
    return op(Transpose, v, perm=[*range(rank - 2), rank - 1, rank - 2])


def reconstructed(_: Any, made: list[Any]) -> list[Any]:
    """Of eigenvalues w and vectors v: w and v diag(w) v^T."""
    w, v, _ = made
    return [w, op(compute.Matmul, scaled(v, w), swapped(v))]


def multiplied(_: Any, made: list[Any]) -> list[Any]:
    """Of u, s and vh, not full: s and u diag(s) vh."""
    u, s, vh, _ = made
    return [s, op(compute.Matmul, scaled(u, s), vh)]


def gap(values: Any, made: list[Any]) -> list[Any]:
    """Of a real matrix a and complex w and v: a v - v diag(w), which is zero."""
    (a,), (wr, wi, vr, vi, _) = values, made
    re = op(ew.Sub, op(compute.Matmul, a, vr), op(ew.Sub, scaled(vr, wr), scaled(vi, wi)))
    im = op(ew.Sub, op(compute.Matmul, a, vi), op(ew.Add, scaled(vr, wi), scaled(vi, wr)))
    return [re, im]


FLOATS = ("f32", "f64")
LU = [
    *(case(factor.Lu, [(t(d, "m", "n", "n"), positive)]) for d in FLOATS),
    case(factor.Lu, [(t("f64", "n", "m"), plain)]),
    case(factor.Lu, [(t("f64", 2, "m", "n"), plain)] * 2),  # complex
]
DETERMINANT = [
    *(case(factor.Determinant, [(t(d, "m", "n", "n"), positive)], lambda _, made: made[1:]) for d in FLOATS),
    case(factor.Determinant, [(t("f64", "m", 5, 5), plain)]),
    case(factor.Determinant, [(t("f64", "m", 4, 4), plain)] * 2),  # complex
]
CHOLESKY = [
    *(case(factor.Cholesky, [(t(d, "m", "n", "n"), positive)]) for d in FLOATS),
]
LDL = [
    *(case(factor.Ldl, [(t(d, "m", "n", "n"), positive)], hermitian=d == "f32") for d in FLOATS),
    case(factor.Ldl, [(t("f64", "m", 5, 5), plain)], hermitian=False),
    case(factor.Ldl, [(t("f64", "m", 4, 4), plain)] * 2, hermitian=True),  # complex
]
LDL_SOLVE = [
    case(
        factor.LdlSolve,
        [(t(d, "m", "n", "n"), positive), (t(d, "m", "n"), in_place), (t(d, "m", "n", 3), plain)],
        hermitian=False,
    )
    for d in FLOATS
]
TRIANGULAR = [
    case(
        factor.TriangularSolve,
        [(t(d, "m", "n", "n"), positive), (t(d, "m", "n", 3), plain)],
        upper=upper,
        unit=unit,
    )
    for d, upper, unit in (("f32", False, False), ("f64", True, False), ("f64", False, True), ("f32", True, True))
]
QR = [
    case(factor.Qr, [(t("f32", "m", "n", "n + 1"), within(-1, 1))]),
    case(factor.Qr, [(t("f64", "n + 2", "m"), within(-1, 1))]),
    case(factor.Qr, [(t("f64", 3, "m + 1", "n"), within(-1, 1))] * 2),  # complex
]
HOUSEHOLDER = [
    case(factor.HouseholderProduct, [(t(d, 2, "n + m", "n"), within(-0.3, 0.3)), (t(d, 2, "n"), within(-0.3, 0.3))]) for d in FLOATS
]
EIGH = [
    *(case(factor.Eigh, [(t(d, "m", "n", "n"), plain)], reconstructed, upper=d == "f32", vectors=True) for d in FLOATS),
    case(factor.Eigh, [(t("f64", "n", "n"), plain)], upper=True, vectors=False),
]
SVD = [
    *(case(factor.Svd, [(t(d, "n", "m"), within(-1, 1))], multiplied, full=False, vectors=True) for d in FLOATS),
    case(factor.Svd, [(t("f64", "m", "n", 3), within(-1, 1))], lambda _, made: [made[1]], full=True, vectors=True),
    case(factor.Svd, [(t("f32", "m", "n", "n"), within(-1, 1))], full=False, vectors=False),
]
EIG = [case(factor.Eig, [(t(d, "m", "n", "n"), within(-1, 1))], gap, vectors=True) for d in FLOATS]
CASES: dict[str, list[Part]] = {
    "dhlo.lu": LU,
    "dhlo.determinant": DETERMINANT,
    "dhlo.cholesky": CHOLESKY,
    "dhlo.ldl": LDL,
    "dhlo.ldl_solve": LDL_SOLVE,
    "dhlo.triangular_solve": TRIANGULAR,
    "dhlo.qr": QR,
    "dhlo.householder_product": HOUSEHOLDER,
    "dhlo.eigh": EIGH,
    "dhlo.svd": SVD,
    "dhlo.eig": EIG,
}
