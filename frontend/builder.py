"""Typed construction of dialect ops: promotion, broadcasting and size arithmetic are done here, once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv

from dhlo.errors import CompileError
from dhlo.frontend.dims import Dims, static_value
from dhlo.frontend.promotion import promote
from dhlo.ir.dialect import Op, build
from dhlo.ir.mlir import ir
from dhlo.ir.ops import compute, control, elementwise, movement
from dhlo.ir.symbols import as_expr, product, show
from dhlo.ir.types import DTYPES, DType, TensorType, from_mlir, from_torch_dtype

__all__ = ["Complex", "OpBuilder", "Operand", "Value"]

Value: TypeAlias = Any  # an ir.Value of ranked tensor type
Operand: TypeAlias = Any  # a Value, a Python number or a size expression
OpClass: TypeAlias = type[Op]
Size: TypeAlias = Any  # an int or a size expression


@dataclass(frozen=True)
class Complex:
    """A complex tensor: its real and imaginary part, of one shape and dtype."""

    re: Value
    im: Value


class OpBuilder:
    """Builds ops at the insertion point. Methods that take operands promote and broadcast them as PyTorch does;
    `dims` holds
    what is known of sizes."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims
        self.node: Any = None  # the fx node being lowered
        self.importer: Any = None
        self.checked: set[Any] = set()  # conditions that the function's own block asserts already

    # ------------------------------------------------------------------------------------------------ basics
    @staticmethod
    def is_tensor(x: Any) -> bool:
        return isinstance(x, ir.Value)

    @staticmethod
    def type(x: Value) -> TensorType:
        return from_mlir(x)

    def shape(self, x: Value) -> list[sympy.Expr]:
        return list(from_mlir(x).shape)

    def rank(self, x: Value) -> int:
        return from_mlir(x).rank

    def dtype(self, x: Value) -> DType:
        return from_mlir(x).dtype

    def wide_dtype(self, x: Value) -> DType:
        """The dtype that ATen's kernels compute in for x: f32 for reduced floats, else its own."""
        d = self.dtype(x)
        return self.as_dtype("f32") if d.name in ("f16", "bf16") else d

    def dim(self, x: Value, d: Any) -> int:
        """A dim number, counted from the end if negative."""
        rank = self.rank(x)
        d, size = int(d), max(rank, 1)
        if not -size <= d < size:
            raise CompileError(f"dim {d} is out of range for rank {rank}")
        return int(d % size)

    def dims_list(self, x: Value, dims: Any) -> list[int]:
        """Dim numbers, all of them for None or an empty list."""
        if dims is None or (isinstance(dims, list | tuple) and not dims):
            return list(range(self.rank(x)))
        if not self.rank(x):
            return []
        return [self.dim(x, d) for d in (dims if isinstance(dims, list | tuple) else [dims])]

    @staticmethod
    def as_dtype(d: torch.dtype | DType | str | None, default: Any = "f32") -> DType:
        d = default if d is None else d
        return DTYPES[d] if isinstance(d, str) else from_torch_dtype(d) if isinstance(d, torch.dtype) else d

    def op(
        self,
        cls: OpClass,
        operands: Sequence[Value],
        attrs: dict[str, Any] | None = None,
        results: Sequence[TensorType] | None = None,
    ) -> Value:
        """Builds an op; its result, or the list of them if it hasn't exactly one."""
        op = build(cls, operands, attrs, results=results)
        return op.results[0] if len(op.results) == 1 else list(op.results)

    # ------------------------------------------------------------------------------------------------ sources
    def full(self, shape: Sequence[Size], value: Any, dtype: DType | str | torch.dtype) -> Value:
        """A constant number or size expression everywhere; a pair of tensors for a complex dtype."""
        if self.as_dtype(dtype).is_complex:
            number, part = static_value(value), self.as_dtype(dtype).register
            re, im = (number.real, number.imag) if isinstance(number, complex) else (number, 0)
            return Complex(self.full(shape, re, part), self.full(shape, im, part))
        t = TensorType.of(self.as_dtype(dtype), shape)
        return self.op(movement.Full, [], {"value": _text(static_value(value), t.dtype)}, [t])

    def iota(self, shape: Sequence[Size], dim: int, dtype: DType | str, start: Any = 0, step: Any = 1) -> Value:
        t = TensorType.of(self.as_dtype(dtype), shape)
        text = [_text(static_value(x), DTYPES["i64"] if t.dtype.is_int else t.dtype) for x in (start, step)]
        return self.op(movement.Iota, [], {"dim": dim, "start": text[0], "step": text[1]}, [t])

    def tensor(self, x: Operand, dtype: DType | str | None = None) -> Value:
        """A scalar as a rank-0 tensor; tensors as they are (converted if `dtype` is given)."""
        if self.is_tensor(x):
            return x if dtype is None else self.convert(x, dtype)
        return self.full([], x, dtype or promote([x]))

    def held(self, x: Operand, dtype: DType) -> Operand:
        """A tensor, or a number that `dtype` holds. Raises CompileError for another one, where ATen doesn't wrap it either."""
        if not self.is_tensor(x):
            _text(static_value(x), dtype)
        return x

    # ------------------------------------------------------------------------------------------------ elementwise
    def convert(self, x: Value, dtype: DType | str | torch.dtype) -> Value:
        t, d = from_mlir(x), self.as_dtype(dtype)
        if d.is_complex:
            return Complex(self.convert(x, d.register), self.full(t.shape, 0, d.register))
        return x if t.dtype == d else self.op(elementwise.Convert, [x], None, [t.with_dtype(d)])

    def result_type(self, *xs: Operand) -> DType:
        return promote([from_mlir(x) if self.is_tensor(x) else x for x in xs])

    def broadcast_shape(self, *shapes: Sequence[Size]) -> list[sympy.Expr]:
        """The common shape, aligned at the right; sizes that must agree are recorded as equal."""
        rank = max((len(s) for s in shapes), default=0)
        out: list[sympy.Expr] = []
        for d in range(-rank, 0):
            size = as_expr(1)
            for s in shapes:
                if len(s) >= -d and (own := self.dims.size(s[d])) != 1:
                    if size == 1 or self._is_one(size, own):
                        size = own
                    elif not self._is_one(own, size):
                        size = self.dims.same(size, own)
            out.append(size)
        return out

    def _is_one(self, size: sympy.Expr, other: sympy.Expr) -> bool:
        """Is a size that meets another taken to be 1? The exported program does so where it is 1 for all inputs that aren't
        empty; that becomes part of the contract."""
        if size in self.dims.ones:
            return True
        if not size.has(sympy.Max, sympy.Min) or self.dims.equal(size, other) or self.dims.fold(size, 1) != 1:
            return False
        self.require(sympy.Eq(size, 1), f"{show(size)} must be 1")
        return True

    def expand(self, x: Value, shape: Sequence[Size], dims: Sequence[int] | None = None) -> Value:
        """Broadcasts: operand dim i becomes result dim dims[i] (default: aligned at the right)."""
        t = from_mlir(x)
        want = TensorType.of(t.dtype, shape)
        at = list(range(want.rank - t.rank, want.rank)) if dims is None else list(dims)
        if any(t.shape[i] != want.shape[d] and self._is_one(t.shape[i], want.shape[d]) for i, d in enumerate(at)):
            x = self.reshape(x, t.shape)
            t = from_mlir(x)
        for i, d in enumerate(at):
            if t.shape[i] != 1:
                self.dims.same(t.shape[i], want.shape[d])
        if t.rank == want.rank and t.shape == want.shape:
            return x
        if t.rank == want.rank and all(self.dims.equal(a, b) for a, b in zip(t.shape, want.shape, strict=True)):
            return x
        return self.op(movement.Broadcast, [x], {"dims": at}, [want])

    def together(self, *xs: Operand, dtype: DType | str | None = None) -> list[Value]:
        """The operands in one shape and one dtype (default: promoted)."""
        d = self.as_dtype(dtype or self.result_type(*xs))
        shape = self.broadcast_shape(*[from_mlir(x).shape for x in xs if self.is_tensor(x)])
        return [self.expand(self.convert(x, d), shape) if self.is_tensor(x) else self.full(shape, _wrapped(x, d), d) for x in xs]

    def ew(self, cls: OpClass, *xs: Operand, dtype: DType | str | None = None) -> Value:
        """An elementwise op on promoted, broadcast operands. Reduced floats meet scalars in f32, as ATen computes
        them."""
        d = self.as_dtype(dtype or self.result_type(*xs))
        if cls in _DIVISIONS and d.is_int and not self.is_tensor(xs[1]) and _wrapped(xs[1], d) == 0:
            raise CompileError(f"integers are divided by {xs[1]}, which is 0 as {d}")
        if d.name in ("f16", "bf16") and not all(self.is_tensor(x) for x in xs):
            y = self.op(cls, self.together(*xs, dtype="f32"))
            return y if from_mlir(y).dtype.is_bool else self.convert(y, d)
        return self.op(cls, self.together(*xs, dtype=d))

    def add(self, a: Operand, b: Operand) -> Value:
        return self.ew(elementwise.Add, a, b)

    def sub(self, a: Operand, b: Operand) -> Value:
        return self.ew(elementwise.Sub, a, b)

    def mul(self, a: Operand, b: Operand) -> Value:
        return self.ew(elementwise.Mul, a, b)

    def div(self, a: Operand, b: Operand) -> Value:
        """True division: integers become f32."""
        d = self.result_type(a, b)
        return self.ew(elementwise.Div, a, b, dtype=d if d.is_float else "f32")

    def floordiv(self, a: Operand, b: Operand) -> Value:
        return self.ew(elementwise.FloorDiv, a, b)

    def remainder(self, a: Operand, b: Operand) -> Value:
        return self.ew(elementwise.Remainder, a, b)

    def maximum(self, a: Operand, b: Operand) -> Value:
        return self.ew(elementwise.Maximum, a, b)

    def minimum(self, a: Operand, b: Operand) -> Value:
        return self.ew(elementwise.Minimum, a, b)

    def select(self, pred: Value, a: Operand, b: Operand, dtype: DType | str | None = None) -> Value:
        """`a` where pred holds, else `b`."""
        d = self.as_dtype(dtype or self.result_type(a, b))
        shape = self.broadcast_shape(*[from_mlir(x).shape for x in (pred, a, b) if self.is_tensor(x)])
        vals = [self.expand(self.convert(x, d), shape) if self.is_tensor(x) else self.full(shape, x, d) for x in (a, b)]
        return self.op(elementwise.Select, [self.expand(self.convert(pred, "i1"), shape), *vals])

    def unary(self, cls: OpClass, x: Value) -> Value:
        """A float function: integers become f32."""
        return self.op(cls, [self.floating(x)])

    def floating(self, x: Value) -> Value:
        return x if from_mlir(x).dtype.is_float else self.convert(x, "f32")

    def in_f32(self, f: Callable[..., Value], *xs: Operand) -> Value:
        """Computes a composite in f32 where the operands are reduced floats, and rounds once at the end, as ATen's
        kernels do."""
        first = from_mlir(next(x for x in xs if self.is_tensor(x))).dtype
        wide = [self.convert(x, "f32") if self.is_tensor(x) and from_mlir(x).dtype.name in ("f16", "bf16") else x for x in xs]
        y = f(*wide)
        return self.convert(y, first) if first.name in ("f16", "bf16") else y

    # ------------------------------------------------------------------------------------------------ movement
    def reshape(self, x: Value, shape: Sequence[Size]) -> Value:
        """The same elements under another shape; one size may be -1."""
        t = from_mlir(x)
        sizes = [as_expr(s) for s in shape]
        if -1 in sizes:
            at = sizes.index(sympy.Integer(-1))
            sizes[at] = self._quotient(t.shape, [s for i, s in enumerate(sizes) if i != at])
        sizes = [self.dims.size(s) for s in sizes]
        if t.shape == tuple(sizes):
            return x
        if not self.dims.equal(t.numel, product(sizes)):
            self._same_numel(list(t.shape), sizes)
        return self.op(movement.Reshape, [x], None, [TensorType.of(t.dtype, sizes)])

    def restate(self, x: Value) -> Value:
        """A value whose sizes are what the program defines, under the equalities known so far, which it checks."""
        t = from_mlir(x)
        shape = [self.dims.expr(s) for s in t.shape]
        return x if t.shape == tuple(shape) else self.op(movement.Reshape, [x], None, [TensorType.of(t.dtype, shape)])

    def _quotient(self, sizes: Sequence[sympy.Expr], others: Sequence[sympy.Expr]) -> sympy.Expr:
        """product(sizes) / product(others), exact."""
        left, right = list(sizes), []
        for o in others:
            hit = next((i for i, s in enumerate(left) if self.dims.equal(s, o)), None)
            if hit is None:
                right.append(o)
            else:
                left.pop(hit)
        return _exact_quotient(product(left), product(right))

    def _same_numel(self, a: list[sympy.Expr], b: list[sympy.Expr]) -> None:
        """Records that two shapes have equally many elements."""
        for s in list(a):
            hit = next((i for i, o in enumerate(b) if self.dims.equal(s, o)), None)
            if hit is not None:
                a.remove(s)
                b = [o for i, o in enumerate(b) if i != hit]
        left, right = product(a), product(b)
        if not self.dims.equal(left, right):
            self.require(sympy.Eq(left, right), "a view changes the number of elements")

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return x if list(perm) == list(range(len(perm))) else self.op(movement.Transpose, [x], {"perm": list(perm)})

    def swap(self, x: Value, a: int, b: int) -> Value:
        """Transposes two dims."""
        perm = list(range(self.rank(x)))
        if perm:
            a, b = self.dim(x, a), self.dim(x, b)
            perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def unsqueeze(self, x: Value, dim: int) -> Value:
        shape: list[Any] = self.shape(x)
        shape.insert(dim if dim >= 0 else dim + len(shape) + 1, 1)
        return self.reshape(x, shape)

    def squeeze(self, x: Value, dims: Sequence[int]) -> Value:
        return self.reshape(x, [s for d, s in enumerate(self.shape(x)) if d not in dims])

    def slice(self, x: Value, dim: int, start: Size, size: Size, step: int = 1) -> Value:
        """`size` elements of a dim from `start`, which must be in range."""
        t = from_mlir(x)
        start, size = as_expr(start), as_expr(size)
        if start == 0 and step == 1 and self.dims.equal(size, t.shape[dim]):
            return x
        starts = [start if d == dim else 0 for d in range(t.rank)]
        steps = [step if d == dim else 1 for d in range(t.rank)]
        shape = [size if d == dim else s for d, s in enumerate(t.shape)]
        return self.op(
            movement.Slice,
            [x],
            {"starts": [show(as_expr(s)) for s in starts], "steps": steps},
            [TensorType.of(t.dtype, shape)],
        )

    def pick(self, x: Value, dim: int, index: Size) -> Value:
        """One element of a dim, which vanishes."""
        return self.squeeze(self.slice(x, dim, index, 1), [dim])

    def concat(self, xs: Sequence[Value], dim: int) -> Value:
        if len(xs) == 1:
            return xs[0]
        first = from_mlir(xs[0])
        for x in xs[1:]:
            for d, (a, b) in enumerate(zip(first.shape, from_mlir(x).shape, strict=True)):
                if d != dim:
                    self.dims.same(a, b)
        between = xs[1:-1]
        if len({str(x.type) for x in between}) > 1:  # the dialect wants one type between first and last
            return self.concat([self.concat(xs[:-1], dim), xs[-1]], dim)
        return self.op(movement.Concat, list(xs), {"dim": dim})

    def pad(self, x: Value, low: Sequence[Size], high: Sequence[Size], value: float) -> Value:
        """A constant around the tensor; no amount may be negative."""
        t = from_mlir(x)
        shape = [a + s + b for a, s, b in zip(low, t.shape, high, strict=True)]
        if all(as_expr(p) == 0 for p in (*low, *high)):
            return x
        return self.op(
            movement.Pad,
            [x],
            {"low": [show(as_expr(p)) for p in low], "value": float(_text(value, t.dtype))},
            [TensorType.of(t.dtype, shape)],
        )

    def take(self, x: Value, index: Sequence[Value], dims: Sequence[int], at: int, wrap: bool = False) -> Value:
        """Looks up: dims `dims` of x are replaced by the index tensors' common shape at result dim `at`. Negative indices count
        from the end if `wrap`, else they fail the call."""
        return self.op(movement.Take, [x, *self.together(*index)], {"dims": list(dims), "at": at, "wrap": wrap})

    # ------------------------------------------------------------------------------------------------ computing
    def reduce(self, x: Value, how: str, dims: Sequence[int], keepdim: bool = False) -> Value:
        """Combines along dims; bools only by any, all, max or min."""
        dims = sorted(dims)
        y = self.op(compute.Reduce, [x], {"how": how, "dims": dims}) if dims else x
        return self.reshape(y, [1 if d in dims else s for d, s in enumerate(self.shape(x))]) if keepdim else y

    def count(self, x: Value, dims: Sequence[int]) -> sympy.Expr:
        """How many elements a reduction along dims combines."""
        return product([self.shape(x)[d] for d in dims])

    def _factors(self, a: Value, b: Value) -> tuple[TensorType, TensorType]:
        """The types of the sides of a matrix product, whose common sizes are the same from here on."""
        ta, tb = from_mlir(a), from_mlir(b)
        self.dims.same(ta.shape[-1], tb.shape[-2])
        if tb.rank > 2:
            for x, y in zip(ta.shape[:-2], tb.shape[:-2], strict=True):
                self.dims.same(x, y)
        return ta, tb

    def matmul_bytes(self, a: Value, b: Value) -> Value:
        """The product of i8 or ui8 with i8 in i32, whose sums wrap; shapes as in `matmul`."""
        self._factors(a, b)
        return self.op(compute.Matmul, [a, b])

    def matmul(self, a: Value, b: Value) -> Value:
        """Matrix product; batch dims of a and b must be the same, or b of rank 2. f16 is multiplied in f32 and rounded once;
        products of integers are exact: of i8 they are summed in i32, of others one by one."""
        ta, tb = self._factors(a, b)
        if ta.dtype.name == "f16":
            return self.convert(self.op(compute.Matmul, [self.convert(a, "f32"), self.convert(b, "f32")]), "f16")
        if ta.dtype.is_float:
            return self.op(compute.Matmul, [a, b])
        if ta.dtype.name == tb.dtype.name == "i8":
            return self.convert(self.matmul_bytes(a, b), "i8")
        rows, columns = self.unsqueeze(a, ta.rank - 1), self.unsqueeze(self.swap(b, -1, -2), tb.rank - 2)
        products = self.mul(rows, columns)
        return self.reduce(products, "any" if ta.dtype.is_bool else "sum", [from_mlir(products).rank - 1])

    # ------------------------------------------------------------------------------------------------ conditions
    def require(self, cond: Any, message: str) -> None:
        """Makes a relation of sizes part of the contract: proved, learned, or checked at run time."""
        left = self.dims.learn(self.dims.shortened(cond) if isinstance(cond, sympy.Basic) else cond)
        if left is not None and left not in self.checked:
            self.op(control.Assert, [], {"condition": show(left), "message": message})
            if self.importer is not None and self.importer.depth == 0:
                self.checked.add(left)
                self.dims.shorten(left)

    def need_all(self, right: Value, message: str) -> None:
        """Fails the call where an element isn't true."""
        self.op(control.AssertTensor, [self.reduce(right, "all", list(range(self.rank(right))))], {"message": message})

    def size(self, e: Any) -> sympy.Expr:
        """A size, simplified by what is known. Where the exported program states it as it is for non-empty inputs (s - 1 for
        x[1:]), non-emptiness becomes part of the contract."""
        e = self.dims.fold(self.dims.expr(e), guarded=True)
        if not e.has(sympy.Max, sympy.Min) or not self._stated(self.dims.fold(e, 1)):
            return e
        return self.dims.simplify(e)

    def _stated(self, e: sympy.Expr) -> bool:
        """Has a result of the program's node that is being lowered this size? What decompositions state is no promise."""
        if self.importer is None or self.importer.inlined:
            return False
        results = pytree.tree_leaves(self.node.meta.get("val"))
        return any(self.dims.equal(self.importer.size_of(n), e) for v in results if isinstance(v, torch.Tensor) for n in v.shape)


@functools.cache
def _exact_quotient(top: sympy.Expr, bottom: sympy.Expr) -> sympy.Expr:
    """top / bottom, of which no rest is left."""
    if bottom == 0:
        return as_expr(0)
    # FloorDiv would have sympy simplify sides with a common factor, which takes seconds where windows are nested.
    top, bottom = _without_common_factors(top, bottom)
    opaque = {f: sympy.Dummy() for f in (top / bottom).atoms(sympy.Function)}  # to cancel, rounded parts are mere names
    q = sympy.cancel((top / bottom).xreplace(opaque)).xreplace({d: f for f, d in opaque.items()})
    if sympy.denom(sympy.together(q)) == 1:
        return sympy.expand(q) if q.is_Add or bottom == 1 else q
    return as_expr(FloorDiv(top, bottom))


def _without_common_factors(top: sympy.Expr, bottom: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Both over the factors that both are written with; nothing is expanded."""
    (n, left), (m, right) = top.primitive(), bottom.primitive()
    number, powers = sympy.gcd(n, m), right.as_powers_dict()
    common = product(factor ** sympy.Min(power, powers[factor]) for factor, power in left.as_powers_dict().items())
    return n / number * (left / common), m / number * (right / common)


def _text(value: Any, dtype: DType) -> str:
    """The text of a constant, exact for its dtype."""
    if isinstance(value, sympy.Basic):
        return show(value)
    if dtype.is_complex:
        return str(complex(value))
    if dtype.is_float:
        return repr(float(value))
    if dtype.is_bool:
        return str(int(bool(value)))
    least, most = _bounds(dtype)
    if isinstance(value, float):
        fits = is_finite_int(value) and least <= int(value) <= most
    else:
        fits = min(least, -most) <= int(value) <= most
    if not fits:
        raise CompileError(f"{value} is no {dtype}")
    return str(_wrapped(int(value), dtype))


_DIVISIONS = (elementwise.FloorDiv, elementwise.TruncDiv, elementwise.Remainder, elementwise.Fmod)


def _bounds(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of an integer dtype."""
    info = torch.iinfo(dtype.torch)
    return info.min, info.max


def _wrapped(value: Any, dtype: DType) -> Any:
    """An int beside tensors of an integer dtype as that dtype holds it: modulo 2^bits, as ATen's operators take others."""
    if not dtype.is_int or not isinstance(value, int | sympy.Integer):
        return value
    least, most = _bounds(dtype)
    return (int(value) - least) % (most - least + 1) + least


def is_finite_int(value: float) -> bool:
    """Can the value be truncated to an integer?"""
    return value == value and abs(value) != float("inf")
