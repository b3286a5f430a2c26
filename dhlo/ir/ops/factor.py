"""Factorisations of matrices and what is solved with them; each has a kernel of its own.

Matrices are the last two dims; complex ones come and go as pairs of tensors, real part first.
"""

# ruff: noqa: E704
from typing import Any

import sympy
import torch

from dhlo.ir.dialect import Flag, Kind, Op, Operands, Results, TypeError_, attr
from dhlo.ir.symbols import product
from dhlo.ir.types import DTYPES, TensorType, from_mlir

Args = list[torch.Tensor]
Shape = list[Any]


class Factorisation(Op):
    """Base. `arity` counts the matrices among the operands, a pair of tensors as one; `outputs` says what comes out: kind and
    shape of each result, where a kind is "number" (as the operands), "real", "complex" or "integer" (i32)."""

    kind = Kind.OPAQUE
    arity = 1

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        raise NotImplementedError

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        """The same in PyTorch, of complex tensors as such."""
        raise NotImplementedError

    @classmethod
    def pairs(cls, count: int) -> bool:
        """Are `count` operands pairs?"""
        return count == 2 * cls.arity

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        first, step = operands[0], 2 if cls.pairs(len(operands)) else 1
        if len(operands) != step * cls.arity or any(t.dtype != first.dtype or t.rank < 1 for t in operands):
            raise TypeError_(f"takes {cls.arity} matrices of one dtype, or the two parts of each")
        if first.rank < 2 or first.dtype.name not in ("f32", "f64"):
            raise TypeError_("a matrix has two dims at least, of f32 or f64")
        made: list[TensorType] = []
        for kind, shape in cls.outputs([list(t.shape) for t in operands[::step]], attrs):
            t = first.with_shape(shape)
            made += {"number": [t] * step, "real": [t], "complex": [t, t], "integer": [t.with_dtype("i32")]}[kind]
        return made

    def reference(self, args: Args, sizes: Any) -> Args:
        if self.pairs(len(args)):
            args = [torch.complex(*args[i : i + 2]) for i in range(0, len(args), 2)]
        made = self.compute(*args, **{name: attr(self, name) for name in self.flags()})
        out: Args = []
        for x in made if isinstance(made, tuple) else (made,):
            out += [x.real, x.imag] if x.is_complex() else [x]
        return [x.contiguous().to(DTYPES[str(v.type.element_type)].torch) for x, v in zip(out, self.results, strict=True)]

    @classmethod
    def flags(cls) -> list[str]:
        return [n for n, t in cls.__annotations__.items() if t is Flag]

    def flops(self) -> sympy.Expr:
        """About one multiply-add for each element and row."""
        t = from_mlir(self.operands[0])
        return 2 * product(t.shape) * t.shape[-1]


def _square(shape: Shape) -> None:
    if shape[-1] != shape[-2] and all(s.is_Integer for s in shape[-2:]):
        raise TypeError_("the matrix isn't square")


def _least(shape: Shape) -> Any:
    return sympy.Min(shape[-2], shape[-1])


def _all_found(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape[:-2], dtype=torch.int32)


class Lu(Factorisation, name="lu"):
    """LU factors of x [.., R, C] with partial pivoting, both in one matrix; pivots [.., min(R, C)] from 1; the number of the first
    pivot that is 0, or 0 (aten.linalg_lu_factor_ex)."""

    x: Operands
    y: Results

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        (x,) = shapes
        return [("number", x), ("integer", [*x[:-2], _least(x)]), ("integer", x[:-2])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        return tuple(torch.linalg.lu_factor_ex(args[0]))


class Determinant(Factorisation, name="determinant"):
    """The determinant of x [.., N, N]; a number of size 1, or 0, and the logarithm of a size, whose product it is
    (aten._linalg_det, aten._linalg_slogdet)."""

    x: Operands
    y: Results

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        (x,) = shapes
        _square(x)
        return [("number", x[:-2]), ("number", x[:-2]), ("real", x[:-2])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        return torch.linalg.det(args[0]), *torch.linalg.slogdet(args[0])


class Cholesky(Factorisation, name="cholesky"):
    """L [.., N, N] of L L^H = x, whose lower triangle is read; the order of the first minor that isn't positive, or 0
    (aten.linalg_cholesky_ex). After such a minor, L holds NaN."""

    x: Operands
    y: Results

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        (x,) = shapes
        _square(x)
        return [("number", x), ("integer", x[:-2])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        return tuple(torch.linalg.cholesky_ex(args[0]))


class Ldl(Factorisation, name="ldl"):
    """Bunch and Kaufman's factors of a symmetric (`hermitian`: Hermitian) x [.., N, N], whose lower triangle is read: one matrix,
    pivots [.., N], the number of the first column of zeros, or 0 (aten.linalg_ldl_factor_ex)."""

    x: Operands
    y: Results
    hermitian: Flag

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        (x,) = shapes
        _square(x)
        return [("number", x), ("integer", x[:-1]), ("integer", x[:-2])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        return tuple(torch.linalg.ldl_factor_ex(args[0], hermitian=attrs["hermitian"]))


class LdlSolve(Factorisation, name="ldl_solve"):
    """x of the system with those factors [.., N, N], pivots [.., N] as numbers of that dtype and right sides [.., N, M]; leading
    dims are equal (aten.linalg_ldl_solve)."""

    x: Operands
    y: Results
    arity = 3
    hermitian: Flag

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        _square(shapes[0])
        return [("number", shapes[2])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        factors, pivots, b = args
        return torch.linalg.ldl_solve(factors, pivots.real.to(torch.int32), b, hermitian=attrs["hermitian"])


class TriangularSolve(Factorisation, name="triangular_solve"):
    """x of a x = b, a [.., N, N] triangular (`upper`; `unit`: with ones on its diagonal) and b [.., N, M]; equal leading dims."""

    x: Operands
    y: Results
    arity = 2
    upper: Flag
    unit: Flag

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        _square(shapes[0])
        return [("number", shapes[1])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        return torch.linalg.solve_triangular(*args, upper=attrs["upper"], unitriangular=attrs["unit"])


class Qr(Factorisation, name="qr"):
    """R above and Householder's reflections below the diagonal of a matrix like x [.., R, C]; their factors [.., min(R, C)]
    (aten.geqrf)."""

    x: Operands
    y: Results

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        (x,) = shapes
        return [("number", x), ("number", [*x[:-2], _least(x)])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        return tuple(torch.geqrf(args[0]))


class HouseholderProduct(Factorisation, name="householder_product"):
    """The first C columns of the product of the reflections below the diagonal of x [.., R, C], with factors [.., K], K <= C <= R
    (aten.linalg_householder_product)."""

    x: Operands
    y: Results
    arity = 2

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        return [("number", shapes[0])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        return torch.linalg.householder_product(*args)


class Eigenvalues(Factorisation):
    """Base: eigenvalues [.., N] of x [.., N, N] and, if `vectors`, eigenvectors as columns, of length 1; how many eigenvalues
    weren't found, which are all of what isn't finite. `values` and `columns` are their kinds."""

    values = columns = "complex"

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        (x,) = shapes
        _square(x)
        return [(cls.values, x[:-1]), *([(cls.columns, x)] if attrs["vectors"] else []), ("integer", x[:-2])]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        made = cls.found(args[0], attrs)
        return *(made if attrs["vectors"] else made[:1]), _all_found(args[0])

    @classmethod
    def found(cls, x: torch.Tensor, attrs: dict[str, Any]) -> Any:
        """Eigenvalues and eigenvectors by PyTorch."""
        raise NotImplementedError


class Eigh(Eigenvalues, name="eigh"):
    """Ascending eigenvalues of a Hermitian matrix, of which the lower triangle is read (`upper`: the other); eigenvectors of any
    phase (aten._linalg_eigh)."""

    x: Operands
    y: Results
    upper: Flag
    vectors: Flag
    values, columns = "real", "number"

    @classmethod
    def found(cls, x: torch.Tensor, attrs: dict[str, Any]) -> Any:
        return torch.linalg.eigh(x, UPLO="U" if attrs["upper"] else "L")


class Eig(Eigenvalues, name="eig"):
    """Eigenvalues of a matrix in no particular order (conjugates side by side if it is real), and eigenvectors; all complex
    (aten.linalg_eig)."""

    x: Operands
    y: Results
    vectors: Flag

    @classmethod
    def found(cls, x: torch.Tensor, attrs: dict[str, Any]) -> Any:
        return torch.linalg.eig(x)


class Svd(Factorisation, name="svd"):
    """Singular values [.., min(R, C)] of x [.., R, C], descending; if `vectors`, with singular vectors u [.., R, K] before and
    vh [.., K, C] after them, K = min(R, C) or, if `full`, all; how many values weren't found, which are all of what isn't finite
    (aten._linalg_svd)."""

    x: Operands
    y: Results
    full: Flag
    vectors: Flag

    @classmethod
    def outputs(cls, shapes: list[Shape], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
        (x,) = shapes
        *lead, rows, cols = x
        k = _least(x)
        u, vh = ([*lead, rows, rows], [*lead, cols, cols]) if attrs["full"] else ([*lead, rows, k], [*lead, k, cols])
        values, info = ("real", [*lead, k]), ("integer", lead)
        return [("number", u), values, ("number", vh), info] if attrs["vectors"] else [values, info]

    @classmethod
    def compute(cls, *args: torch.Tensor, **attrs: Any) -> Any:
        made = torch.linalg.svd(args[0], full_matrices=attrs["full"])
        return *(made if attrs["vectors"] else made[1:2]), _all_found(args[0])


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)]
