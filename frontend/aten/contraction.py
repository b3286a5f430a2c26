"""Matrix products, einsum and attention."""

from __future__ import annotations

import math
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.frontend.aten.random import drop
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import compute
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import is_static


@lowers(A.linear.default)
def _linear(b: OpBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if b.rank(weight) == 1:
        y = _matmul(b, x, weight)
    elif b.rank(x) == 1:
        return b.squeeze(_linear(b, b.unsqueeze(x, 0), weight, bias), [0])
    elif bias is not None and b.dtype(x).name == "f16":
        return _accumulate(b, bias, x, b.transpose(weight, [1, 0]), 1, 1)
    else:
        y = b.matmul(x, b.transpose(weight, [1, 0]))
    return y if bias is None else b.add(y, bias)


@lowers(A.mm.default, A.bmm.default)
def _mm(b: OpBuilder, x: Value, y: Value) -> Value:
    return b.matmul(x, y)


@lowers(A.mv.default, A.matmul.default, A.dot.default, A.vdot.default)
def _matmul(b: OpBuilder, x: Value, y: Value) -> Value:
    rx, ry = b.rank(x), b.rank(y)
    if rx == 1 and ry == 1:
        return b.reduce(b.mul(x, y), "sum", [0])
    if ry == 1:
        return b.squeeze(_matmul(b, x, b.unsqueeze(y, 1)), [rx - 1])
    if rx == 1:
        return b.squeeze(_matmul(b, b.unsqueeze(x, 0), y), [max(ry - 2, 0)])
    if ry == 2:
        return b.matmul(x, y)
    batch = b.broadcast_shape(b.shape(x)[:-2], b.shape(y)[:-2])
    if all(s == 1 for s in b.shape(y)[:-2]) and len(batch) == rx - 2:
        return b.matmul(x, b.reshape(y, b.shape(y)[-2:]))
    return b.matmul(b.expand(x, [*batch, *b.shape(x)[-2:]]), b.expand(y, [*batch, *b.shape(y)[-2:]]))


def _accumulate(b: OpBuilder, c: Value, x: Value, y: Value, beta: Any, alpha: Any) -> Value:
    """beta * c + alpha * (x @ y), of f16 rounded once."""
    dtype = b.dtype(x)
    if not dtype.is_float:
        beta, alpha = int(beta), int(alpha)
    if dtype.name == "f16":
        x, y = b.convert(x, "f32"), b.convert(y, "f32")

    def f(product: Value, c: Value) -> Value:
        product = b.mul(product, alpha) if alpha != 1 else product
        if beta == 0:
            return product
        return b.add(b.mul(c, beta) if beta != 1 else c, product)

    return b.convert(b.in_f32(f, b.matmul(x, y), c), dtype)


@lowers(A.addmm.default, A.baddbmm.default)
def _addmm(b: OpBuilder, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    return _accumulate(b, c, x, y, beta, alpha)


@lowers(A.addmv.default)
def _addmv(b: OpBuilder, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    column = b.unsqueeze(c, 1) if b.rank(c) else c
    return b.squeeze(_accumulate(b, column, x, b.unsqueeze(y, 1), beta, alpha), [1])


@lowers(A.addbmm.default)
def _addbmm(b: OpBuilder, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    batch, rows, inner = b.shape(x)
    x = b.reshape(b.transpose(x, [1, 0, 2]), [rows, batch * inner])
    return _accumulate(b, c, x, b.reshape(y, [batch * inner, b.shape(y)[2]]), beta, alpha)


@lowers(A.outer.default, A.ger.default)
def _outer(b: OpBuilder, x: Value, y: Value) -> Value:
    return b.mul(b.unsqueeze(x, 1), b.unsqueeze(y, 0))


@lowers(A.bilinear.default)
def _bilinear(b: OpBuilder, x: Value, y: Value, weight: Value, bias: Value | None = None) -> Value:
    n, p, q = b.shape(weight)
    left = _matmul(b, x, b.reshape(b.transpose(weight, [1, 0, 2]), [p, n * q]))
    left = b.reshape(left, [*b.shape(x)[:-1], n, q])
    out = b.reduce(b.mul(left, b.unsqueeze(y, b.rank(y) - 1)), "sum", [b.rank(left) - 1])
    return out if bias is None else b.add(out, bias)


# ---------------------------------------------------------------------------------------------------- einsum
def _labels(equation: str, operands: list[int]) -> tuple[list[str], str]:
    """Labels of each operand and of the result; an ellipsis becomes capital letters of its own, aligned at the
    right."""
    left, _, right = equation.replace(" ", "").partition("->")
    names = left.split(",")
    free = [chr(c) for c in range(0x391, 0x3A0)]
    width = max((r - len(n.replace("...", "")) for n, r in zip(names, operands, strict=True) if "..." in n), default=0)
    full = [
        n.replace("...", "".join(free[width - (r - len(n.replace("...", ""))) : width]))
        for n, r in zip(names, operands, strict=True)
    ]
    if "->" in equation:
        return full, right.replace("...", "".join(free[:width]))
    counts = "".join(full)
    out = sorted({c for c in counts if counts.count(c) == 1 and c not in free[:width]})
    return full, "".join(free[:width]) + "".join(out)


@lowers(A.einsum.default)
def _einsum(b: OpBuilder, equation: str, operands: list[Value], *, path: Any = None) -> Value:
    labels, out = _labels(equation, [b.rank(x) for x in operands])
    terms = [_undiagonal(b, x, names) for x, names in zip(operands, labels, strict=True)]
    value, names = terms[0]
    for i, (other, other_names) in enumerate(terms[1:], start=1):
        later = set(out).union(*[set(n) for _, n in terms[i + 1 :]])
        value, names = _contract(b, value, names, other, other_names, later)
    drop = [d for d, c in enumerate(names) if c not in out]
    value, names = (b.reduce(value, "sum", drop) if drop else value), "".join(c for c in names if c in out)
    return b.transpose(value, [names.index(c) for c in out])


def _undiagonal(b: OpBuilder, x: Value, names: str) -> tuple[Value, str]:
    """Takes the diagonal of labels that an operand has twice."""
    for c in dict.fromkeys(names):
        while names.count(c) > 1:
            i = names.index(c)
            j = names.index(c, i + 1)
            line = b.iota([b.dims.same(b.shape(x)[i], b.shape(x)[j])], 0, "i64")
            x = b.take(x, [line, line], [i, j], 0)
            names = c + names[:i] + names[i + 1 : j] + names[j + 1 :]
    return x, names


def _contract(b: OpBuilder, x: Value, xn: str, y: Value, yn: str, later: set[str]) -> tuple[Value, str]:
    """Product of two terms; labels that nothing needs later are summed over. One batched matmul; where nothing is summed over, a
    multiplication of elements, whose types may differ."""
    for names, other in ((xn, yn), (yn, xn)):
        gone = [d for d, c in enumerate(names) if c not in other and c not in later]
        if gone and names is xn:
            x, xn = b.reduce(x, "sum", gone), "".join(c for c in xn if c in yn or c in later)
        elif gone:
            y, yn = b.reduce(y, "sum", gone), "".join(c for c in yn if c in xn or c in later)
    batch = [c for c in xn if c in yn and c in later]
    inner = [c for c in xn if c in yn and c not in later]
    rows, cols = [c for c in xn if c not in yn], [c for c in yn if c not in xn]
    size = {c: s for names, v in ((xn, x), (yn, y)) for c, s in zip(names, b.shape(v), strict=True) if s != 1 or c not in names}
    for names, v in ((xn, x), (yn, y)):
        for c, s in zip(names, b.shape(v), strict=True):
            size[c] = b.broadcast_shape([size[c]], [s])[0] if c in size else s

    if not inner:
        all_ = [*batch, *rows, *cols]

        def spread(v: Value, names: str) -> Value:
            v = b.transpose(v, [names.index(c) for c in all_ if c in names])
            shape = iter(b.shape(v))
            return b.reshape(v, [next(shape) if c in names else 1 for c in all_])

        return b.mul(spread(x, xn), spread(y, yn)), "".join(all_)

    def arrange(v: Value, names: str, first: list[str], second: list[str]) -> Value:
        order = [*batch, *first, *second]
        v = b.expand(b.transpose(v, [names.index(c) for c in order]), [size[c] for c in order])
        mul: Any = lambda cs: sympy.prod([size[c] for c in cs])
        return b.reshape(v, [*([mul(batch)] if batch else []), mul(first), mul(second)])

    z = b.matmul(arrange(x, xn, rows, inner), arrange(y, yn, inner, cols))
    return b.reshape(z, [size[c] for c in (*batch, *rows, *cols)]), "".join((*batch, *rows, *cols))


# ---------------------------------------------------------------------------------------------------- attention
@lowers(A.scaled_dot_product_attention.default)
def _attention(
    b: OpBuilder,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    causal: Any = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if not isinstance(causal, bool):
        known = b.dims.holds(causal)
        if known is None:
            raise CompileError(f"is_causal depends on sizes ({causal})", hint="pass is_causal as a plain bool")
        causal = known
    rank = max(map(b.rank, (q, k, v)))
    q, k, v = (b.reshape(x, [*[1] * (rank - b.rank(x)), *b.shape(x)]) for x in (q, k, v))
    if mask is not None and rank == 3 and b.rank(mask) == 3:
        mask = b.unsqueeze(mask, 1)
    lead = b.broadcast_shape(*(b.shape(x)[: -3 if rank > 3 else -2] for x in (q, k, v)))
    if rank > 4:
        q, k, v = (b.expand(x, [*lead, *b.shape(x)[-3:]]) for x in (q, k, v))
    shape = [*lead, *b.shape(q)[len(lead) :]]
    q, k, v = (_four_dims(b, x) for x in (q, k, v))
    if mask is not None and rank > 4:
        mask = b.expand(mask, [*b.broadcast_shape(shape[:-2], b.shape(mask)[:-2]), *b.shape(mask)[-2:]])
        mask = _four_dims(b, mask)
    batch, heads, length, depth = b.shape(q)
    if not enable_gqa:
        heads = b.broadcast_shape([heads], b.shape(k)[1:2], b.shape(v)[1:2])[0]
    kv = b.dims.same(b.shape(k)[2], b.shape(v)[2])
    b.dims.same(depth, b.shape(k)[3])
    kv_heads = b.dims.same(b.shape(k)[1], b.shape(v)[1]) if enable_gqa else heads
    batch = b.broadcast_shape([batch], b.shape(k)[:1], b.shape(v)[:1])[0]
    q = b.expand(q, [batch, heads, length, depth])
    k = b.expand(k, [batch, kv_heads, kv, b.shape(k)[3]])
    v = b.expand(v, [batch, kv_heads, kv, b.shape(v)[3]])
    operands = [q, k, v]
    if mask is not None:
        mask = mask if b.dtype(mask).is_bool else b.convert(mask, b.dtype(q))
        operands.append(b.expand(mask, [batch, heads, length, kv]))
    if dropout or not (is_static(depth) and is_static(b.shape(v)[3])) or b.dtype(q).name == "f64":
        y = b.in_f32(lambda *xs: _composed_attention(b, *xs, causal=causal, scale=scale, dropout=dropout), *operands)
    else:
        scale = (1.0 / math.sqrt(int(depth)) if depth != 0 else 1.0) if scale is None else scale
        y = b.op(compute.Attention, operands, {"scale": float(scale), "softcap": 0.0, "causal": causal, "past": "0"})
    return b.reshape(y, [*shape[:-1], b.shape(v)[3]]) if rank != 4 else y


@lowers(A._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_attention(
    b: OpBuilder,
    q: Value,
    k: Value,
    v: Value,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Value]:
    """Attention, and the logarithm of its rows' sums [B, H, S] in f32."""
    wide_q, wide_k = (b.convert(x, "f32") if b.dtype(x).bytes < 4 else x for x in (q, k))
    scores = attention_scores(b, wide_q, wide_k, attn_mask, causal=causal, scale=scale)
    top = b.reduce(scores, "max", [3], keepdim=True)
    sums = b.reduce(b.unary(ew.Exp, b.sub(scores, top)), "sum", [3])
    logs = b.add(b.squeeze(top, [3]), b.unary(ew.Log, sums))
    return [_attention(b, q, k, v, attn_mask, dropout, causal, scale=scale, enable_gqa=True), logs]


def _composed_attention(
    b: OpBuilder,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    *,
    causal: bool,
    scale: float | None,
    dropout: float,
) -> Value:
    """Attention as products around a softmax, for what its kernels don't take: head sizes that vary, double precision, dropout."""
    k, v = (repeated_heads(b, x, b.shape(q)[1]) for x in (k, v))
    scores = attention_scores(b, q, k, mask, causal=causal, scale=scale)
    top = b.reduce(scores, "max", [3], keepdim=True)
    weights = b.unary(ew.Exp, b.sub(scores, b.select(b.ew(ew.Eq, top, -math.inf), 0.0, top)))
    total = b.reduce(weights, "sum", [3], keepdim=True)
    weights = b.div(weights, b.select(b.ew(ew.Eq, total, 0.0), 1.0, total))
    return b.matmul(drop(b, weights, dropout)[0] if dropout else weights, v)


def repeated_heads(b: OpBuilder, x: Value, heads: Any) -> Value:
    """x [B, H, S, E] with each of its heads as many times in a row as make `heads`."""
    batch, own, *rest = b.shape(x)
    groups = b.size(heads / own)
    if groups == 1:
        return x
    return b.reshape(b.expand(b.unsqueeze(x, 2), [batch, own, groups, *rest]), [batch, heads, *rest])


def attention_scores(b: OpBuilder, q: Value, k: Value, mask: Value | None, *, causal: bool, scale: float | None) -> Value:
    """What the softmax of attention is taken of."""
    rows, depth, columns = *b.shape(q)[2:], b.shape(k)[2]
    factor = b.unary(ew.Rsqrt, b.full([], depth, b.dtype(q))) if scale is None else scale
    scores = b.matmul(b.mul(q, factor), b.swap(k, 2, 3))
    allowed = None
    if mask is not None and not b.dtype(mask).is_bool:
        scores = b.add(scores, mask)
    elif mask is not None:
        allowed = mask
    if causal:
        square = [rows, columns]
        lower = b.op(ew.Ge, [b.iota(square, 0, "i64"), b.iota(square, 1, "i64")])
        allowed = lower if allowed is None else b.ew(ew.And, allowed, lower)
    return scores if allowed is None else b.select(allowed, scores, -math.inf)


def _four_dims(b: OpBuilder, x: Value) -> Value:
    """[S, D], [B, S, D] or [.., H, S, D] as [B, H, S, D]."""
    s = b.shape(x)
    if len(s) == 4:
        return x
    if len(s) < 4:
        return b.reshape(x, [*s[:-2], *[1] * (4 - len(s)), *s[-2:]])
    return b.reshape(x, [sympy.prod(s[:-3]), *s[-3:]])
