"""Factorisations that have a kernel: LU, Cholesky, QR, eigenvalues, singular values; real and complex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dhlo.errors import CompileError
from dhlo.frontend.aten.complex import Complex, parts_of
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import COMPLEX, LOWERINGS, into
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import factor


def _on_both(*ops: Any) -> Callable[[Any], Any]:
    """Registers the rule for real and for complex arguments."""

    def add(f: Any) -> Any:
        into(LOWERINGS, ops)(f)
        return into(COMPLEX, ops)(f)

    return add


def _factor(b: OpBuilder, cls: Any, *matrices: Operand, **attrs: Any) -> list[Operand]:
    """The results of a factorisation, complex ones as such."""
    pairs = any(isinstance(x, Complex) for x in matrices)
    values: list[Value] = []
    for x in matrices:
        values += parts_of(b, x) if pairs else [x]
    made = b.op(cls, values, attrs)
    made = list(made) if isinstance(made, list) else [made]
    kinds = [kind for kind, _ in cls.outputs([b.shape(v) for v in values[:: 2 if pairs else 1]], attrs)]
    out: list[Operand] = []
    for kind in kinds:
        first = made.pop(0)
        out.append(Complex(first, made.pop(0)) if kind == "complex" or (kind == "number" and pairs) else first)
    return out


def _each(x: Operand, f: Callable[[Value], Value]) -> Operand:
    return Complex(f(x.re), f(x.im)) if isinstance(x, Complex) else f(x)


def _real(x: Operand) -> Value:
    return x.re if isinstance(x, Complex) else x


def _turned(b: OpBuilder, x: Operand) -> Operand:
    """Rows as columns."""
    d = b.rank(_real(x)) - 2
    return _each(x, lambda v: b.swap(v, d, d + 1))


def _conj(b: OpBuilder, x: Operand) -> Operand:
    return Complex(x.re, b.op(ew.Neg, [x.im])) if isinstance(x, Complex) else x


def _together(b: OpBuilder, *matrices: Operand) -> list[Operand]:
    """With common leading dims."""
    lead = b.broadcast_shape(*[b.shape(_real(x))[:-2] for x in matrices])
    return [_each(x, lambda v: b.expand(v, [*lead, *b.shape(v)[-2:]])) for x in matrices]


def _square(b: OpBuilder, x: Operand, what: str) -> None:
    rows, cols = b.shape(_real(x))[-2:]
    if rows.is_Integer and cols.is_Integer and rows != cols:
        raise CompileError(f"{what} of matrices that aren't square")


@_on_both(A.linalg_lu_factor_ex.default)
def _lu_factor(b: OpBuilder, x: Operand, *, pivot: bool = True, check_errors: bool = False) -> Sequence[Operand]:
    if not pivot:
        raise CompileError("LU factors without pivots", hint="PyTorch has them on CUDA only")
    return tuple(_factor(b, factor.Lu, x))


@_on_both(A._linalg_det.default)
def _det(b: OpBuilder, x: Operand) -> Sequence[Operand]:
    """With LU factors of the transpose, which is how PyTorch sees rows."""
    det = _factor(b, factor.Determinant, x)[0]
    return (det, *_factor(b, factor.Lu, _turned(b, x))[:2])


@_on_both(A._linalg_slogdet.default)
def _slogdet(b: OpBuilder, x: Operand) -> Sequence[Operand]:
    _, sign, logs = _factor(b, factor.Determinant, x)
    return (sign, logs, *_factor(b, factor.Lu, _turned(b, x))[:2])


@_on_both(A.linalg_cholesky_ex.default)
def _cholesky(b: OpBuilder, x: Operand, *, upper: bool = False, check_errors: bool = False) -> Sequence[Operand]:
    _square(b, x, "Cholesky's factor")
    lower, info = _factor(b, factor.Cholesky, _conj(b, _turned(b, x)) if upper else x)
    return (_conj(b, _turned(b, lower)) if upper else lower), info


@_on_both(A.cholesky.default)
def _cholesky_alone(b: OpBuilder, x: Operand, upper: bool = False) -> Operand:
    return _cholesky(b, x, upper=upper)[0]


@_on_both(A.linalg_ldl_factor_ex.default)
def _ldl_factor(b: OpBuilder, x: Operand, *, hermitian: bool = False, check_errors: bool = False) -> Sequence[Operand]:
    _square(b, x, "indefinite factors")
    return tuple(_factor(b, factor.Ldl, x, hermitian=hermitian))


@_on_both(A.linalg_ldl_solve.default)
def _ldl_solve(b: OpBuilder, x: Operand, pivots: Value, y: Operand, *, hermitian: bool = False) -> Operand:
    n, size = b.shape(_real(x))[-1], b.op(ew.Abs, [b.convert(pivots, "i64")])
    rows = b.ew(ew.And, b.ew(ew.Ge, size, 1), b.ew(ew.Le, size, n))
    b.need_all(rows, "linalg.ldl_solve: a pivot names no row")
    numbers = b.unsqueeze(b.convert(pivots, b.dtype(_real(x))), b.rank(pivots) - 1)
    x, numbers, y = _together(b, x, numbers, y)
    d = b.rank(numbers) - 2
    return _factor(
        b, factor.LdlSolve, x, b.reshape(numbers, [*b.shape(numbers)[:d], b.shape(numbers)[-1]]), y, hermitian=hermitian
    )[0]


@_on_both(A.linalg_solve_triangular.default)
def _solve_triangular(
    b: OpBuilder, x: Operand, y: Operand, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Operand:
    if not left:
        return _turned(b, _solve_triangular(b, _turned(b, x), _turned(b, y), upper=not upper, unitriangular=unitriangular))
    x, y = _together(b, x, y)
    return _factor(b, factor.TriangularSolve, x, y, upper=upper, unit=unitriangular)[0]


@_on_both(A.linalg_householder_product.default)
def _householder_product(b: OpBuilder, x: Operand, taus: Operand) -> Operand:
    return _factor(b, factor.HouseholderProduct, x, taus)[0]


def _none(b: OpBuilder, like: Operand) -> Operand:
    """An empty tensor."""
    return _each(like, lambda v: b.full([0], 0, b.dtype(v)))


def _first(b: OpBuilder, x: Operand, dim: int, size: Any) -> Operand:
    """The first `size` rows or columns (dim -2 or -1)."""
    return _each(x, lambda v: b.slice(v, b.rank(v) + dim, 0, size))


@_on_both(A.geqrf.default)
def _geqrf(b: OpBuilder, x: Operand) -> Sequence[Operand]:
    return tuple(_factor(b, factor.Qr, x))


def _whole(b: OpBuilder, made: Operand, taus: Operand) -> Operand:
    """All columns of the product of reflections: those of a matrix with as many columns of zeros as there are rows."""
    *lead, rows, _ = b.shape(_real(made))
    wide = _each(made, lambda v: b.concat([v, b.full([*lead, rows, rows], 0, b.dtype(v))], len(lead) + 1))
    return _factor(b, factor.HouseholderProduct, _first(b, wide, -1, rows), taus)[0]


@_on_both(A.linalg_qr.default)
def _qr(b: OpBuilder, x: Operand, mode: str = "reduced") -> Sequence[Operand]:
    made, taus = _factor(b, factor.Qr, x)
    k = b.shape(_real(taus))[-1]
    r = _each(made if mode == "complete" else _first(b, made, -2, k), lambda v: LOWERINGS[A.triu.default](b, v))
    if mode == "r":
        return _none(b, x), r
    if mode == "complete":
        return _whole(b, made, taus), r
    return _factor(b, factor.HouseholderProduct, _first(b, made, -1, k), taus)[0], r


@_on_both(A.ormqr.default)
def _ormqr(b: OpBuilder, x: Operand, taus: Operand, y: Operand, left: bool = True, transpose: bool = False) -> Operand:
    q = _whole(b, x, taus)
    q = _conj(b, _turned(b, q)) if transpose else q
    matmul = (COMPLEX if isinstance(q, Complex) else LOWERINGS)[A.matmul.default]
    return matmul(b, q, y) if left else matmul(b, y, q)


def _iterated(b: OpBuilder, name: str, cls: Any, x: Operand, **attrs: Any) -> list[Operand]:
    """The results of a factorisation that iterates, but the last, which must be 0: how many values weren't found."""
    *made, info = _factor(b, cls, x, **attrs)
    found = b.ew(ew.Eq, info, 0)
    message = f"{name}: a matrix isn't finite, or the algorithm didn't converge"
    b.need_all(found, message)
    return made


@_on_both(A._linalg_eigh.default)
def _eigh(b: OpBuilder, x: Operand, UPLO: str = "L", compute_v: bool = True) -> Sequence[Operand]:
    _square(b, x, "eigenvalues")
    made = _iterated(b, "linalg.eigh", factor.Eigh, x, upper=UPLO.upper() == "U", vectors=compute_v)
    return tuple(made) if compute_v else (made[0], _none(b, x))


@_on_both(A._linalg_svd.default)
def _svd(
    b: OpBuilder, x: Operand, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Sequence[Operand]:
    made = _iterated(b, "linalg.svd", factor.Svd, x, full=full_matrices and compute_uv, vectors=compute_uv)
    return tuple(made) if compute_uv else (_none(b, x), made[0], _none(b, x))


@_on_both(A.linalg_eig.default)
def _eig(b: OpBuilder, x: Operand) -> Sequence[Operand]:
    _square(b, x, "eigenvalues")
    return tuple(_iterated(b, "linalg.eig", factor.Eig, x, vectors=True))


@_on_both(A._linalg_eigvals.default, A.linalg_eigvals.default)
def _eigvals(b: OpBuilder, x: Operand) -> Operand:
    _square(b, x, "eigenvalues")
    return _iterated(b, "linalg.eigvals", factor.Eig, x, vectors=False)[0]
