"""Ops that only say where an element comes from: constants, views, joins, lookups. Each is a rule from result to operand index."""

# ruff: noqa: E704
import functools
from typing import Any

import torch

from dhlo.ir.dialect import (
    Flag,
    Ints,
    Kind,
    Number,
    Op,
    Out,
    Scalar,
    Sizes,
    Tensor,
    TypeError_,
    Variadic,
    attr,
    defining,
    dims_of,
    equal_shapes,
    exprs,
    static,
)
from dhlo.ir.dialect import number as number
from dhlo.ir.mlir import ir
from dhlo.ir.pull import Element, Elements, Position
from dhlo.ir.symbols import Expr, Size, as_expr, is_static, parse
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]


class Movement(Op):
    """Base: one operand, whose elements are found at other places in the result."""

    kind = Kind.MOVEMENT
    x: Tensor
    y: Out


class Reshape(Movement, name="reshape"):
    """The same elements in row-major order under another shape."""

    explicit = True

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        if operands[0].dtype != results[0].dtype:
            return f"{operands[0]} can't become {results[0]}"
        a, b = operands[0].numel, results[0].numel
        return f"{a} elements can't become {b}" if is_static(a) and is_static(b) and a != b else None

    def reference(self, args: Args, sizes: Any) -> Args:
        return [args[0].reshape([sizes(s) for s in from_mlir(self.results[0]).shape])]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        src, dst = from_mlir(self.operands[0]), from_mlir(self.results[0])
        return em.value(self.operands[0], em.reindex(idx, dst.shape, src.shape))


class Transpose(Movement, name="transpose"):
    """Permutes dims: result dim i is operand dim perm[i]."""

    perm: Ints

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        perm = attrs["perm"]
        if sorted(perm) != list(range(operands[0].rank)):
            raise TypeError_(f"{perm} does not permute {operands[0].rank} dims")
        return [operands[0].with_shape([operands[0].shape[p] for p in perm])]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [args[0].permute(attr(self, "perm"))]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        src = [None] * len(idx)
        for i, p in enumerate(attr(self, "perm")):
            src[p] = idx[i]
        return em.value(self.operands[0], src)


class Broadcast(Movement, name="broadcast"):
    """Repeats: operand dim i is result dim dims[i], where it has the same size or is 1."""

    dims: Ints
    explicit = True

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        dims = attrs["dims"]
        if operands[0].dtype != results[0].dtype:
            return f"{operands[0]} can't become {results[0]}"
        if len(dims) != operands[0].rank or sorted(set(dims)) != dims or not all(0 <= d < results[0].rank for d in dims):
            return f"dims {dims} must name a result dim, in order, for each of {operands[0].rank} operand dims"
        for i, d in enumerate(dims):
            a, b = operands[0].shape[i], results[0].shape[d]
            if is_static(a) and is_static(b) and a not in (1, b):
                return f"operand dim {i} of size {a} can't become {b}"
        return None

    def reference(self, args: Args, sizes: Any) -> Args:
        shape = [sizes(s) for s in from_mlir(self.results[0]).shape]
        dims = attr(self, "dims")
        view = [1] * len(shape)
        for i, d in enumerate(dims):
            view[d] = args[0].shape[i]
        return [args[0].reshape(view).expand(shape)]

    def source(self, em: Elements, idx: list[Position]) -> list[Position]:
        """Where the operand's element stands."""
        src, dst = from_mlir(self.operands[0]), from_mlir(self.results[0])
        dims = attr(self, "dims")
        return [em.zero if src.shape[i] == 1 and dst.shape[d] != 1 else idx[d] for i, d in enumerate(dims)]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        return em.value(self.operands[0], self.source(em, idx))


class Slice(Movement, name="slice"):
    """Element i of result dim d is element starts[d] + i * steps[d] of operand dim d; in range by contract."""

    starts: Sizes
    steps: Ints
    explicit = True

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x,), (y,) = operands, results
        if x.dtype != y.dtype or not x.rank == y.rank == len(attrs["starts"]) == len(attrs["steps"]):
            return "a slice has the operand's dtype and rank, and a start and a step for each dim"
        return None if all(k > 0 for k in attrs["steps"]) else f"steps must be positive, not {attrs['steps']}"

    def reference(self, args: Args, sizes: Any) -> Args:
        x = args[0]
        shape = from_mlir(self.results[0]).shape
        for d, (start, step) in enumerate(zip(exprs(attr(self, "starts")), attr(self, "steps"), strict=True)):
            n = sizes(shape[d])
            x = x.narrow(d, sizes(start), max(0, (n - 1) * step + 1)) if n else x.narrow(d, 0, 0)
            x = x[(slice(None),) * d + (slice(None, None, step),)]
        return [x]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        starts, steps = exprs(attr(self, "starts")), attr(self, "steps")
        return em.value(self.operands[0], [em.shift(em.scale(i, k), s) for i, s, k in zip(idx, starts, steps, strict=True)])


class Reverse(Movement, name="reverse"):
    """Reverses the order of elements along dims (aten.flip)."""

    dims: Ints

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dims_of(attrs["dims"], operands[0].rank)
        return [operands[0]]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [args[0].flip(attr(self, "dims"))]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        dims, shape = attr(self, "dims"), from_mlir(self.operands[0]).shape
        return em.value(self.operands[0], [em.shift(em.scale(i, -1), shape[d] - 1) if d in dims else i for d, i in enumerate(idx)])


class Pad(Movement, name="pad"):
    """A constant around the operand: `low` elements before each dim, as many after as the result type has room for."""

    low: Sizes
    value: ir.FloatAttr
    explicit = True

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        good = operands[0].dtype == results[0].dtype and operands[0].rank == results[0].rank == len(attrs["low"])
        return None if good else "a padded tensor has the operand's dtype and rank, and `low` an entry for each dim"

    def reference(self, args: Args, sizes: Any) -> Args:
        out = from_mlir(self.results[0])
        y = torch.full([sizes(s) for s in out.shape], attr(self, "value")).to(out.dtype.torch)
        y[tuple(slice(sizes(lo), sizes(lo) + n) for lo, n in zip(exprs(attr(self, "low")), args[0].shape, strict=True))] = args[0]
        return [y]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        low, shape = exprs(attr(self, "low")), from_mlir(self.operands[0]).shape
        out = from_mlir(self.results[0])
        src, inside = [], None
        for d, i in enumerate(idx):
            if low[d] == 0 and shape[d] == out.shape[d]:
                src.append(i)
                continue
            j = em.shift(i, -low[d])
            ok = em.in_range(j, shape[d])
            src.append(j)
            inside = ok if inside is None else em.both(inside, ok)
        pad = em.constant(attr(self, "value"), out.dtype)
        if inside is None:
            return em.value(self.operands[0], src)
        return em.guarded(inside, lambda: em.value(self.operands[0], src), pad)


class Concat(Op, name="concat"):
    """Joins two or more tensors along `dim`. All but the first and the last must be of one type."""

    kind = Kind.MOVEMENT
    first: Tensor  # IRDL wants one type for all of a variadic group
    between: Variadic
    last: Tensor
    dim: ir.IntegerAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        d, first = attrs["dim"], operands[0]
        dims_of([d], first.rank)
        for t in operands:
            others = zip(t.shape, first.shape, strict=False)
            if (
                t.rank != first.rank
                or t.dtype != first.dtype
                or any(k != d and is_static(a) and is_static(b) and a != b for k, (a, b) in enumerate(others))
            ):
                raise TypeError_(f"can't join {', '.join(map(str, operands))}")
        shape = list(first.shape)
        shape[d] = sum((t.shape[d] for t in operands[1:]), first.shape[d])
        return [first.with_shape(shape)]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [torch.cat(args, attr(self, "dim"))]

    def parts(self, em: Elements, start: Size = 0) -> list[tuple[Any, Expr, Expr]]:
        """What is joined, and where each begins and ends; of what is itself a join along `dim` that is computed here, its parts."""
        d, start, found = attr(self, "dim"), as_expr(start), list[tuple[Any, Expr, Expr]]()
        for x in self.operands:
            inner, end = defining(x), start + from_mlir(x).shape[d]
            if isinstance(inner, Concat) and attr(inner, "dim") == d and em.computed(x):
                found += inner.parts(em, start)
            else:
                found.append((x, start, end))
            start = end
        return found

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        d = attr(self, "dim")
        at = [(end, x, [em.shift(i, -start) if k == d else i for k, i in enumerate(idx)]) for x, start, end in self.parts(em)]
        return em.piecewise(idx[d], at)


class Full(Op, name="full"):
    """One value everywhere: a number or a size expression as text."""

    kind = Kind.SOURCE
    explicit = True
    value: Scalar
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        text = attrs["value"]
        try:
            if results[0].dtype.is_complex:
                complex(text)
            elif number(text) is None and not (text in ("true", "false") and results[0].dtype.is_bool):
                parse(text)
        except ValueError:
            return f"{text!r} is no value of {results[0].dtype}"
        return None

    def reference(self, args: Args, sizes: Any) -> Args:
        out = from_mlir(self.results[0])
        text = attr(self, "value")
        value = complex(text) if out.dtype.is_complex else number(text)
        if value is None:
            value = sizes(parse(text), exact=True)
            if out.dtype.is_int:  # which wraps
                value = int(torch.tensor(value).to(out.dtype.torch))
        return [torch.full([sizes(s) for s in out.shape], value, dtype=out.dtype.torch)]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        return em.scalar(attr(self, "value"), from_mlir(self.results[0]).dtype)


class Iota(Op, name="iota"):
    """start + i * step along `dim`; start and step are numbers or size expressions as text."""

    kind = Kind.SOURCE
    explicit = True
    dim: ir.IntegerAttr
    start: Number
    step: Number
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        dims_of([attrs["dim"]], results[0].rank)
        return "positions are numbers" if results[0].dtype.is_bool or results[0].dtype.is_complex else None

    def reference(self, args: Args, sizes: Any) -> Args:
        out = from_mlir(self.results[0])
        shape = [sizes(s) for s in out.shape]
        d = attr(self, "dim")

        def get(text: str) -> Any:
            return number(text) if number(text) is not None else sizes(parse(text), exact=True)

        start, step = get(attr(self, "start")), get(attr(self, "step"))
        wide = torch.float64 if out.dtype.is_float else torch.int64
        line = (torch.arange(shape[d], dtype=wide) * step + start).to(out.dtype.torch)
        return [line.reshape([-1 if i == d else 1 for i in range(len(shape))]).expand(shape)]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        return em.iota(idx[attr(self, "dim")], attr(self, "start"), attr(self, "step"), from_mlir(self.results[0]).dtype)


class Weight(Op, name="weight"):
    """A constant tensor of the program, by name; its data travels beside the module."""

    kind = Kind.WEIGHT
    explicit = True
    name_: ir.StringAttr
    y: Out


class State(Op, name="state"):
    """A tensor that the session keeps between runs, by name: its content when the run starts."""

    kind = Kind.WEIGHT
    explicit = True
    name_: ir.StringAttr
    y: Out


class Take(Op, name="take"):
    """Looks up elements: operand dims `dims` are indexed by one integer tensor each (all of one shape I), which are replaced
    by I at result dim `at`; the other dims keep their order. Negative indices count from the end if `wrap`. An index out of range
    fails the call. Covers aten.embedding, index_select, index.Tensor and gather."""

    kind = Kind.GATHER
    work = 6
    x: Tensor
    index: Variadic
    dims: Ints
    at: ir.IntegerAttr
    wrap: Flag
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, index = operands[0], operands[1:]
        dims, at = attrs["dims"], attrs["at"]
        if not index or len(index) != len(dims) or any(not i.dtype.is_int for i in index):
            raise TypeError_("take wants one integer tensor for each indexed dim")
        dims_of(dims, x.rank)
        equal_shapes(index, "indices")
        rest = [s for d, s in enumerate(x.shape) if d not in dims]
        if not 0 <= at <= len(rest):
            raise TypeError_(f"{at} is no place among {len(rest)} dims")
        return [x.with_shape([*rest[:at], *index[0].shape, *rest[at:]])]

    def in_range(self, args: Args) -> bool:
        """Whether a call with these operands wouldn't fail."""
        sizes = [args[0].shape[d] for d in attr(self, "dims")]
        least = [-n if attr(self, "wrap") else 0 for n in sizes]
        return all(bool(((i.long() >= lo) & (i.long() < n)).all()) for i, lo, n in zip(args[1:], least, sizes, strict=True))

    def reference(self, args: Args, sizes: Any) -> Args:
        x, index, dims, at = args[0], args[1:], attr(self, "dims"), attr(self, "at")
        rest = [d for d in range(x.dim()) if d not in dims]
        y = x.permute([*dims, *rest])[tuple(i.long() for i in index)]
        n = index[0].dim()
        order = [*range(n, n + at), *range(n), *range(n + at, y.dim())]
        return [y.permute(order)]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        dims, at = attr(self, "dims"), attr(self, "at")
        x, index = self.operands[0], list(self.operands)[1:]
        src_shape = from_mlir(x).shape
        n = from_mlir(index[0]).rank
        where, rest = idx[at : at + n], [*idx[:at], *idx[at + n :]]
        src: list[Any] = []
        inside: list[Element] = []
        loose: list[Expr] = []  # dims whose positions are made safe one by one, for which there has to be an element
        for d, size in enumerate(src_shape):
            if d not in dims:
                src.append(rest.pop(0))
                continue
            v = index[dims.index(d)]
            line = None if attr(self, "wrap") else em.line(v, where, size, self)
            if line is None:
                src.append(em.lookup(em.value(v, where), size, self))
                loose.append(size)
            else:
                src.append(line[0])
                inside.append(line[1])
        some = em.nonempty(loose)
        conditions = inside if some is None else [*inside, some]
        if not conditions:
            return em.value(x, src)
        there = functools.reduce(em.both, conditions)
        return em.guarded(there, lambda: em.value(x, src), em.constant(0, from_mlir(x).dtype))


def concrete(t: TensorType) -> list[int]:
    """A fully static shape as ints."""
    return [static(s) for s in t.shape]


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)] + ["concrete", "number"]
