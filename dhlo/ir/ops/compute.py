"""Ops that combine many elements: reductions, matrix products, attention, convolution, windows."""

# ruff: noqa: E704
import functools
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
import torch.nn.functional as F

from dhlo.ir.dialect import Flag, Ints, Kind, Number, Op, Out, Tensor, TypeError_, Variadic, attr, dims_of, equal_shapes
from dhlo.ir.mlir import ir
from dhlo.ir.ops.quantised import round_rows
from dhlo.ir.symbols import is_static, parse, product
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]
REDUCTIONS = ("sum", "prod", "max", "min", "maxnum", "any", "all", "xor")


class Reduce(Op, name="reduce"):
    """Combines all elements along `dims` (which vanish) by `how`: sum, prod, max, min, maxnum, any, all or xor. Max and min
    propagate NaN, maxnum (of floats) leaves it out; of nothing they give the dtype's lowest or highest value."""

    kind = Kind.REDUCTION
    x: Tensor
    how: ir.StringAttr
    dims: Ints
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dims_of(attrs["dims"], operands[0].rank)
        if attrs["how"] not in REDUCTIONS:
            raise TypeError_(f"unknown reduction {attrs['how']!r}")
        if attrs["how"] in ("any", "all") and not operands[0].dtype.is_bool:
            raise TypeError_(f"{attrs['how']} wants a bool, not {operands[0]}")
        if attrs["how"] == "maxnum" and not operands[0].dtype.is_float:
            raise TypeError_(f"maxnum wants floats, not {operands[0]}")
        if attrs["how"] == "xor" and not operands[0].dtype.is_int:
            raise TypeError_(f"xor wants integers, not {operands[0]}")
        return [operands[0].with_shape([s for d, s in enumerate(operands[0].shape) if d not in attrs["dims"]])]

    def reference(self, args: Args, sizes: Any) -> Args:
        x, how, dims = args[0], attr(self, "how"), attr(self, "dims")
        if how == "maxnum":
            x, how = torch.where(x.isnan(), -float("inf"), x), "max"
        for d in sorted(dims, reverse=True):
            if how == "xor":
                x = functools.reduce(torch.bitwise_xor, x.unbind(d), torch.zeros_like(x.sum(d, dtype=x.dtype)))
            elif how in ("max", "min"):
                if x.shape[d] == 0:
                    empty = [*x.shape[:d], *x.shape[d + 1 :]]
                    info = torch.finfo(x.dtype) if x.is_floating_point() else None
                    lowest = -float("inf") if info else (0 if x.dtype == torch.bool else torch.iinfo(x.dtype).min)
                    highest = float("inf") if info else (1 if x.dtype == torch.bool else torch.iinfo(x.dtype).max)
                    x = torch.full(empty, lowest if how == "max" else highest, dtype=x.dtype)
                else:
                    x = getattr(x, "a" + how)(d)
            else:
                x = getattr(x, how)(d).to(args[0].dtype)
        return [x]

    def flops(self) -> sympy.Expr:
        return from_mlir(self.operands[0]).numel


class ArgReduce(Op, name="argreduce"):
    """Index (i64) of the first largest or smallest element along `dim`, which vanishes; NaN counts as the extreme."""

    kind = Kind.OPAQUE
    x: Tensor
    how: ir.StringAttr
    dim: ir.IntegerAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dims_of([attrs["dim"]], operands[0].rank)
        if attrs["how"] not in ("max", "min") or operands[0].dtype.is_complex:
            raise TypeError_(f"there is no {attrs['how']!r} of {operands[0]}")
        return [operands[0].with_shape([s for d, s in enumerate(operands[0].shape) if d != attrs["dim"]]).with_dtype("i64")]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [getattr(torch, "arg" + attr(self, "how"))(args[0], attr(self, "dim"))]


class Scan(Op, name="scan"):
    """Inclusive running combination along `dim`: sum, prod, max, min, or logsumexp of floats."""

    kind = Kind.OPAQUE
    x: Tensor
    how: ir.StringAttr
    dim: ir.IntegerAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dims_of([attrs["dim"]], operands[0].rank)
        if attrs["how"] not in ("sum", "prod", "max", "min", *(["logsumexp"] if operands[0].dtype.is_float else [])):
            raise TypeError_(f"there is no running {attrs['how']!r} of {operands[0]}")
        return [operands[0]]

    def reference(self, args: Args, sizes: Any) -> Args:
        how, dim = attr(self, "how"), attr(self, "dim")
        if how == "logsumexp":
            return [torch.logcumsumexp(args[0], dim)]
        if how in ("max", "min"):
            return [getattr(torch, "cum" + how)(args[0], dim)[0]]
        return [getattr(torch, "cum" + how)(args[0], dim).to(args[0].dtype)]


class Matmul(Op, name="matmul"):
    """Matrix product: lhs [*batch, M, K] with rhs [K, N] or [*batch, K, N]. With a rank-2 rhs all leading dims of lhs count as M.
    Floats accumulate in f32 or wider; of f16 that is the result, not rounded. i8 or ui8 times i8 gives i32, whose sums wrap."""

    kind = Kind.MATMUL
    lhs: Tensor
    rhs: Tensor
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        a, b = operands
        of_bytes = a.dtype.name in ("i8", "ui8") and b.dtype.name == "i8"
        if a.rank < 2 or b.rank < 2 or (b.rank > 2 and b.rank != a.rank) or (a.dtype != b.dtype and not of_bytes):
            raise TypeError_(f"can't multiply {a} with {b}")
        k1, k2 = a.shape[-1], b.shape[-2]
        if is_static(k1) and is_static(k2) and k1 != k2:
            raise TypeError_(f"inner sizes {k1} and {k2} differ")
        if b.rank > 2:
            equal_shapes([a.with_shape(a.shape[:-2]), b.with_shape(b.shape[:-2])], "leading dims")
        sums = "i32" if of_bytes else "f32" if a.dtype.name == "f16" else a.dtype
        return [TensorType.of(sums, [*a.shape[:-1], b.shape[-1]])]

    def reference(self, args: Args, sizes: Any) -> Args:
        sums = {torch.int8: torch.int32, torch.uint8: torch.int32, torch.float16: torch.float32}
        a, b = (x.to(sums.get(x.dtype, x.dtype)) for x in args)
        return [torch.matmul(a, b)]

    def flops(self) -> sympy.Expr:
        return 2 * from_mlir(self.results[0]).numel * from_mlir(self.operands[0]).shape[-1]


class RoundedMatmul(Op, name="rounded_matmul"):
    """`matmul` whose rows are rounded to int8 as they are read (dynamic quantisation): in each group of `group` steps of K, of each
    256 steps at most by a scale of their own (see `round_rows`). The right side is a `dequantize` of integers; products with it
    may be of integers, which are exact. Where it has no kernel as codes, rows stay as they are. Rows of i8 are taken as they are,
    the result is f32 then."""

    kind = Kind.MATMUL
    lhs: Tensor
    rhs: Tensor
    group: ir.IntegerAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, w = operands
        if x.dtype.name == "i8":
            return Matmul.infer([x.with_dtype("f32"), w.with_dtype("f32")], attrs)
        if not x.dtype.is_float:
            raise TypeError_(f"{x} can't be rounded")
        return Matmul.infer(operands, attrs)

    def reference(self, args: Args, sizes: Any) -> Args:
        x, w = args
        y = torch.matmul(x.float() if x.dtype == torch.int8 else round_rows(x, attr(self, "group")), w.float())
        return [y.to(from_mlir(self.results[0]).dtype.torch)]

    def flops(self) -> sympy.Expr:
        return 2 * from_mlir(self.results[0]).numel * from_mlir(self.operands[0]).shape[-1]


def extra(op: Any, rank: int) -> Any:
    """An operand that attention may do without, by its rank: its mask (4), its sinks (1); None where it has none."""
    types = ((v, from_mlir(v)) for v in list(op.operands)[op.least :])
    return next((v for v, t in types if t.rank == rank and (rank > 1 or t.dtype.is_float)), None)


def segments_of(least: int, operands: Sequence[TensorType]) -> list[int]:
    """How many values each operand of attention is."""
    return [*[1] * least, *(sum(t.rank == rank for t in operands[least:]) for rank in (4, 1))]


def check_extras(more: Sequence[TensorType], q: TensorType, keys: Any) -> None:
    """Raises TypeError_ but for at most a mask [B, Hq, Sq, `keys`] of bools, f32 or the dtype of the queries, then sinks."""
    if [t.rank for t in more] not in ([], [1], [4], [4, 1]):
        raise TypeError_("attention wants at most one mask of rank 4, and then at most sinks of rank 1")
    for t in more:
        if t.rank == 4 and not t.dtype.is_bool and t.dtype.name not in ("f32", q.dtype.name):
            raise TypeError_("a mask is of bools, of f32 or of the dtype of the queries")
        if t.rank == 1 and t.dtype.name != "f32":
            raise TypeError_("sinks are of f32")
        equal_shapes([t, t.with_shape([*q.shape[:3], keys] if t.rank == 4 else [q.shape[1]])], "attention and its mask or sinks")


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sees: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """softmax(scale * Q K^T, capped, under `sees`, beside a head's sink) V."""
    if sinks is None and not softcap and (sees is None or sees.dtype in (torch.bool, q.dtype)):
        return F.scaled_dot_product_attention(q, k, v, sees, scale=scale)
    scores = (q.float() @ k.float().transpose(2, 3)) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    if sees is not None:
        scores = torch.where(sees, scores, -torch.inf) if sees.dtype == torch.bool else scores + sees
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    return (torch.softmax(scores, 3).nan_to_num(0.0)[..., : k.shape[2]] @ v.float()).to(q.dtype)


class Attention(Op, name="attention"):
    """softmax(scale * Q K^T + mask) V: q [B, Hq, Sq, D], k [B, Hkv, Skv, D], v [B, Hkv, Skv, Dv], query head h reads kv head
    h // (Hq / Hkv); an optional mask [B, Hq, Sq, Skv] is bool (true: attend) or added. `causal`: query i sees keys
    j <= i + `past`, a size. Scores s become softcap * tanh(s / softcap) before the mask, unless that is 0. Optional sinks f32 [Hq]
    are scores that rows of a head compare theirs with, of a key that has no value. A row that may attend to nothing gives zeros
    (aten.scaled_dot_product_attention)."""

    kind = Kind.ATTENTION
    least = 3  # operands
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Variadic  # none or one
    sinks: Variadic  # none or some: see `extra`
    scale: ir.FloatAttr
    softcap: ir.FloatAttr
    causal: Flag
    past: Number
    y: Out

    @classmethod
    def segments(cls, operands: list[TensorType]) -> list[int]:
        return segments_of(cls.least, operands)

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        q, k, v, *more = operands
        if any(t.rank != 4 for t in (q, k, v)):
            raise TypeError_("attention wants queries, keys and values of rank 4")
        if not q.dtype.is_float or any(t.dtype != q.dtype for t in (k, v)) or not 0 <= attrs["softcap"] < math.inf:
            raise TypeError_("attention wants floats of one dtype, and a softcap of 0 or more")
        check_extras(more, q, k.shape[2])
        equal_shapes([k.with_shape(k.shape[:3]), v.with_shape(v.shape[:3])], "keys and values")
        equal_shapes([q.with_shape([q.shape[0], q.shape[3]]), k.with_shape([k.shape[0], k.shape[3]])], "queries and keys")
        return [q.with_shape([*q.shape[:3], v.shape[3]])]

    def reference(self, args: Args, sizes: Any) -> Args:
        q, k, v, *more = args
        g = q.shape[1] // k.shape[1] if k.shape[1] else 1
        k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        mask, sinks = (next((x for x in more if x.dim() == rank), None) for rank in (4, 1))
        if attr(self, "causal"):
            sees = torch.arange(k.shape[2]) <= torch.arange(q.shape[2])[:, None] + sizes(parse(attr(self, "past")))
            mask = sees if mask is None else mask & sees if mask.dtype == torch.bool else torch.where(sees, mask, -torch.inf)
        return [attend(q, k, v, mask, sinks, attr(self, "scale"), attr(self, "softcap"))]

    def flops(self) -> sympy.Expr:
        """Of both products; under a causal mask query i looks at i + 1 keys behind the past, where these are all."""
        q, k, out = from_mlir(self.operands[0]), from_mlir(self.operands[1]), from_mlir(self.results[0])
        (batch, heads, queries, depth), keys, past = q.shape, k.shape[2], parse(attr(self, "past"))
        all_ = attr(self, "causal") and (keys - queries - past).expand() == 0
        pairs = queries * (queries + 1) / 2 + queries * past if all_ else queries * keys
        return 2 * batch * heads * pairs * (depth + out.shape[3])


class Conv(Op, name="conv"):
    """aten.convolution without bias: x [B, C, *spatial], w [OC, C / groups, *kernel] (transposed: [C, OC / groups, *kernel]).
    `padding` has an entry per spatial dim, for both ends, or, if not transposed, two: all dims' before, then all after."""

    kind = Kind.CONVOLUTION
    explicit = True
    x: Tensor
    w: Tensor
    stride: Ints
    padding: Ints
    dilation: Ints
    transposed: Flag
    output_padding: Ints
    groups: ir.IntegerAttr
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x, w), (y,), spatial = operands, results, operands[0].rank - 2
        lists = [attrs[n] for n in ("stride", "dilation", "output_padding", "padding")]
        if not x.rank == w.rank == y.rank or spatial < 1 or not x.dtype == w.dtype == y.dtype:
            return "image, kernel and result have one dtype, and one rank of at least 3"
        ends = (spatial,) if attrs["transposed"] else (spatial, 2 * spatial)
        if any(len(v) != spatial for v in lists[:3]) or len(lists[3]) not in ends:
            return f"stride, dilation, output_padding and padding have an entry for each of {spatial} dims"
        good = all(n > 0 for v in lists[:2] for n in v) and all(n >= 0 for v in lists[2:] for n in v) and attrs["groups"] > 0
        return None if good else "stride, dilation and groups must be positive, padding not negative"

    @property
    def pads(self) -> list[tuple[int, int]]:
        """Padding before and after each spatial dim."""
        ends, rank = attr(self, "padding"), len(attr(self, "stride"))
        return list(zip(ends[:rank], ends[-rank:], strict=True))

    @property
    def pointwise(self) -> bool:
        """Each position of the result is a product over the channels of one of the image, the same one."""
        sizes = (*from_mlir(self.operands[1]).shape[2:], *attr(self, "stride"))
        return all(s == 1 for s in sizes) and not any(map(any, self.pads))

    def reference(self, args: Args, sizes: Any) -> Args:
        def g(n: str) -> Any:
            return attr(self, n)

        x, padding = args[0], [a for a, _ in self.pads]
        if any(a != b for a, b in self.pads):
            x, padding = F.pad(x, [n for pair in reversed(self.pads) for n in pair]), [0] * len(padding)
        return [
            torch.ops.aten.convolution(
                x, args[1], None, g("stride"), padding, g("dilation"), g("transposed"), g("output_padding"), g("groups")
            )
        ]

    def flops(self) -> sympy.Expr:
        """The weights of an output channel (transposed: of an input channel) are a multiply-add each."""
        each = self.operands[0] if attr(self, "transposed") else self.results[0]
        return 2 * from_mlir(each).numel * product(from_mlir(self.operands[1]).shape[1:])


class ConvBytes(Op, name="conv_bytes"):
    """Integer sums of a convolution: those of (x - zero) * w over each window, with x [B, C, *spatial] of i8 or ui8 and w
    [OC, C / groups, *kernel] of i8; i32, which wraps. Padding holds `zero`, a value of x's dtype: it adds nothing. `padding` is as
    that of `conv`. Weights are constants."""

    kind = Kind.CONVOLUTION
    explicit = True
    x: Tensor
    w: Tensor
    stride: Ints
    padding: Ints
    dilation: Ints
    groups: ir.IntegerAttr
    zero: ir.IntegerAttr
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x, w), (y,), spatial = operands, results, operands[0].rank - 2
        if not x.rank == w.rank == y.rank or not 1 <= spatial <= 3:
            return "image, kernel and result have one rank of 3 to 5"
        if x.dtype.name not in ("i8", "ui8") or (w.dtype.name, y.dtype.name) != ("i8", "i32"):
            return "the image is of i8 or ui8, the kernel of i8, the result of i32"
        if not w.is_static or x.shape[1] != w.shape[1] * attrs["groups"] or y.shape[1] != w.shape[0]:
            return "the kernel is static, and channels are those of image and result"
        if any(len(attrs[n]) != spatial for n in ("stride", "dilation")) or len(attrs["padding"]) not in (spatial, 2 * spatial):
            return f"stride, dilation and padding have an entry for each of {spatial} dims"
        if any(n <= 0 for name in ("stride", "dilation") for n in attrs[name]) or any(n < 0 for n in attrs["padding"]):
            return "stride and dilation must be positive, padding not negative"
        if attrs["groups"] <= 0 or int(w.shape[0]) % attrs["groups"]:
            return "output channels divide in groups"
        low = 0 if x.dtype.name == "ui8" else -128
        return None if low <= attrs["zero"] < low + 256 else f"zero is a value of {x.dtype}"

    @property
    def pads(self) -> list[tuple[int, int]]:
        """Padding before and after each spatial dim."""
        ends, rank = attr(self, "padding"), len(attr(self, "stride"))
        return list(zip(ends[:rank], ends[-rank:], strict=True))

    def reference(self, args: Args, sizes: Any) -> Args:
        x, w = args[0].double() - attr(self, "zero"), args[1].double()  # exact: sums stay far below 2^53
        x = F.pad(x, [n for pair in reversed(self.pads) for n in pair])
        rank = w.dim() - 2
        y = torch.ops.aten.convolution(
            x, w, None, attr(self, "stride"), [0] * rank, attr(self, "dilation"), False, [0] * rank, attr(self, "groups")
        )
        return [y.long().int()]

    def flops(self) -> sympy.Expr:
        """The weights of an output channel are a multiply-add each."""
        return 2 * from_mlir(self.results[0]).numel * product(from_mlir(self.operands[1]).shape[1:])


class Pool(Op, name="pool"):
    """Combines the elements under a sliding window over the trailing spatial dims: `how` is max, or avg (then `divisor` 0 means
    the count of elements, with padding if `count_pad`). The output size, so also ceil mode, is in the result type."""

    kind = Kind.WINDOW
    explicit = True
    x: Tensor
    how: ir.StringAttr
    window: Ints
    stride: Ints
    padding: Ints
    dilation: Ints
    count_pad: Flag
    divisor: ir.IntegerAttr
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x,), (y,), lists = operands, results, [attrs[n] for n in ("window", "stride", "dilation", "padding")]
        if x.dtype != y.dtype or x.rank != y.rank or attrs["how"] not in ("max", "avg"):
            return "a max or avg has the operand's dtype and rank"
        if not 0 < len(lists[0]) <= x.rank or any(len(v) != len(lists[0]) for v in lists):
            return "window, stride, dilation and padding have an entry for each spatial dim"
        good = all(n > 0 for v in lists[:3] for n in v) and all(n >= 0 for n in lists[3]) and attrs["divisor"] >= 0
        return None if good else "window, stride and dilation must be positive, padding and divisor not negative"

    def reference(self, args: Args, sizes: Any) -> Args:
        def g(n: str) -> Any:
            return attr(self, n)

        x, n = args[0], len(g("window"))
        want = [sizes(s) for s in from_mlir(self.results[0]).shape[-n:]]
        places = zip(x.shape[-n:], g("window"), g("stride"), g("padding"), g("dilation"), strict=True)
        ceil = [(s + 2 * p - d * (w - 1) - 1) // st + 1 for s, w, st, p, d in places] != want
        if g("how") == "max":
            # PyTorch's over one dim is of floats.
            flat = [(1, *g("window")), (1, *g("stride")), (0, *g("padding")), (1, *g("dilation"))]
            lists = [v[n != 1 :] for v in flat]
            y = getattr(F, f"max_pool{max(n, 2)}d")(x.unsqueeze(-2) if n == 1 else x, *lists, ceil)
            y = y.squeeze(-2) if n == 1 else y
        elif n == 1:
            y = F.avg_pool1d(x, g("window"), g("stride"), g("padding"), ceil, g("count_pad"))
        else:
            y = getattr(F, f"avg_pool{n}d")(x, g("window"), g("stride"), g("padding"), ceil, g("count_pad"), g("divisor") or None)
        return [y]

    def flops(self) -> sympy.Expr:
        """An element of the window each."""
        return from_mlir(self.results[0]).numel * product(attr(self, "window"))


class AdaptivePool(Op, name="adaptive_pool"):
    """Max or avg over windows [floor(i*n/m), ceil((i+1)*n/m)) of each trailing spatial dim of size n, m in the result."""

    kind = Kind.WINDOW
    explicit = True
    x: Tensor
    how: ir.StringAttr
    spatial: ir.IntegerAttr
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x,), (y,) = operands, results
        good = x.dtype == y.dtype and x.rank == y.rank and 0 < attrs["spatial"] <= x.rank and attrs["how"] in ("max", "avg")
        return None if good else "a max or avg has the operand's dtype and rank, and some of its dims are spatial"

    def reference(self, args: Args, sizes: Any) -> Args:
        n = attr(self, "spatial")
        want = [sizes(s) for s in from_mlir(self.results[0]).shape[-n:]]
        return [getattr(F, f"adaptive_{attr(self, 'how')}_pool{n}d")(args[0], want)]

    def flops(self) -> sympy.Expr:
        """Together the windows cover the input."""
        return from_mlir(self.operands[0]).numel


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)]
