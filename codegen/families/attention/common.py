"""What the attention kernels share: arguments, addressing of rows, masks."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dhlo.codegen.elementwise.vmath_base import call
from dhlo.codegen.elementwise.vmath_f32 import exp2_below
from dhlo.codegen.families.combine import raised
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, F32, I1, I32, I64, PTR, Fn, V
from dhlo.codegen.kernel_ir.launch import load_args

__all__ = [
    "LOG2E",
    "Args",
    "capped",
    "scale_of_queries",
    "MaskEmitter",
    "Pages",
    "Paging",
    "Rows",
    "Span",
    "Spec",
    "first_key",
    "copy_scales",
    "guarded",
    "keep_where",
    "load_row",
    "masked",
    "store_row",
    "weight",
]

# (fn, batch, query head, query row, first key, lane mask) -> a vector of i1, True = attend, or of f32, added
MaskEmitter = Callable[[Fn, V, V, V, V, V], V]

LOG2E = math.log2(math.e)
_LEAST_KEYS = 96

# q k v o workspace; strides (batch, head, row) of q, k, v, o; kv heads, group, rows of q, rows of k; scale; how many rows ahead V
# is prefetched; blocks or splits; keys before that of the first query, where causal; whether products are of tiles
_ARG_TYPES = (PTR,) * 5 + (I64,) * 21
# the scales of K or V, and their strides (batch, head, row)
_SCALE_TYPES = (PTR, I64, I64, I64)
# those of `Pages`
_PAGE_TYPES = (PTR, I64, PTR, PTR, PTR, I64, I64, I64, PTR, PTR, PTR, I64, I64)


@dataclass(frozen=True)
class Rows:
    """How rows of K or V lie in memory: of what elements, and whether each is to be multiplied by an f32 scale of its own."""

    elem: str
    scaled: bool = False

    @property
    def is_f32(self) -> bool:
        """Nothing is to be done to the elements before they are multiplied."""
        return self.elem == F32 and not self.scaled


@dataclass(frozen=True)
class Paging:
    """K and V lie in blocks of a pool, of so many rows each. A query sees the last `window` keys up to its own, or, if that is 0,
    all."""

    block: int
    window: int = 0


@dataclass(frozen=True)
class Spec:
    """The compile-time side of an attention kernel: sizes of a row of K and of V in elements, element type of Q and the output, how
    K and V are stored, masking."""

    head_dim: int
    value_dim: int
    elem: str
    is_causal: bool
    emit_mask: MaskEmitter | None
    tiles: TileSpec
    k: Rows
    v: Rows
    paging: Paging | None = None
    sinks: bool = False  # heads have scores of a key without a value
    softcap: float = 0.0  # what scores are bounded by, by tanh; 0: nothing
    hides: bool = False  # tokens have numbers that say which of the `HIDDEN_KEYS` keys before their own they don't see

    @property
    def arg_types(self) -> tuple[str, ...]:
        """Types of a kernel's arguments; what masks need lies behind them."""
        scales = _SCALE_TYPES * (self.k.scaled + self.v.scaled)
        return _ARG_TYPES + scales + _PAGE_TYPES * (self.paging is not None) + (PTR,) * (self.sinks + self.hides)

    @property
    def windowed(self) -> bool:
        return self.paging is not None and self.paging.window > 0

    @property
    def has_positions(self) -> bool:
        """Masks are computed from the positions of queries."""
        return self.is_causal or self.windowed

    @property
    def stored(self) -> str:
        """What tells kernels apart by how K and V are stored."""
        both = (("k", self.k), ("v", self.v))
        return "".join(f"_{what}_{rows.elem}{'_scaled' * rows.scaled}" for what, rows in both if rows != Rows(self.elem))

    @property
    def suffix(self) -> str:
        """What tells kernels apart by what becomes of scores."""
        cap = f"_capped_{struct.pack('>d', self.softcap).hex()}" if self.softcap else ""
        return "_sinks" * self.sinks + "_hides" * self.hides + cap

    @property
    def lanes(self) -> int:
        return self.tiles.lanes(F32)

    @property
    def rows(self) -> int:
        """Query rows of a block of the prefill variant: the columns of a tile."""
        return self.tiles.nr(F32)

    @property
    def halves(self) -> int:
        """Vectors of query rows."""
        return self.tiles.vectors

    @property
    def few_rows(self) -> int:
        """The most query rows of a batch and kv head that the decode variant serves: it uses registers less well than a block of
        the prefill variant does, but leaves none of them idle while such a block would be three quarters full or less."""
        return self.rows * 3 // 4

    @property
    def keys(self) -> int:
        """Keys of a block of the prefill variant: full tiles, and whole vectors for masks."""
        keys = self.tiles.mr
        while keys < _LEAST_KEYS or keys % self.lanes:
            keys += self.tiles.mr
        return keys

    @property
    def qk_pad(self) -> int:
        """`head_dim` rounded up to whole vectors."""
        return -(-self.head_dim // self.lanes) * self.lanes

    @property
    def v_pad(self) -> int:
        return -(-self.value_dim // self.lanes) * self.lanes


@dataclass(frozen=True)
class Pages:
    """Where the sequences of a call have their queries, and the blocks of their keys."""

    tables: V
    columns: V
    starts: V
    lengths: V
    counts: V  # see `cascade.Count`
    sequences: V
    halvings: V  # of the sequences, until one is left
    blocks: V  # of a pool
    cell: V  # where a bad block is reported
    positions: V  # i32, of each token in its sequence
    begun: V  # partial results of keys that sequences share; see `cascade.begun_at`
    begun_parts: V  # how many such a row has
    begun_tokens: V  # tokens that have such


@dataclass(frozen=True)
class Args:
    """A kernel's arguments; strides are in elements, (batch, head, row)."""

    q: V
    k: V
    v: V
    o: V
    workspace: V
    qs: Sequence[V]
    ks: Sequence[V]
    vs: Sequence[V]
    os: Sequence[V]
    kv_heads: V
    group: V
    sq: V
    skv: V
    scale: V
    ahead: V
    parts: V
    past: V
    in_tiles: V
    k_scales: Sequence[V]  # pointer, then strides; empty where there are none
    v_scales: Sequence[V]
    pages: Pages | None
    sinks: V | None  # f32, one a head
    hidden: V | None  # i32, one a token

    @staticmethod
    def load(fn: Fn, spec: Spec) -> Args:
        a = load_args(fn, spec.arg_types)
        scale = fn.bitcast(fn.cast(a[21], I32), F32)
        behind_k = len(_ARG_TYPES) + len(_SCALE_TYPES) * spec.k.scaled
        behind_v = behind_k + len(_SCALE_TYPES) * spec.v.scaled
        k_scales, v_scales = a[len(_ARG_TYPES) : behind_k], a[behind_k:behind_v]
        behind_pages = behind_v + len(_PAGE_TYPES) * (spec.paging is not None)
        pages = Pages(*a[behind_v:behind_pages]) if spec.paging is not None else None
        sinks = a[behind_pages] if spec.sinks else None
        hidden = a[behind_pages + spec.sinks] if spec.hides else None
        strides = (a[5:8], a[8:11], a[11:14], a[14:17])
        sizes = (a[17], a[18], a[19], a[20])
        scales = k_scales, v_scales
        return Args(
            a[0], a[1], a[2], a[3], a[4], *strides, *sizes, scale, a[22], a[23], a[24], a[25], *scales, pages, sinks, hidden
        )


@dataclass(frozen=True)
class Span:
    """The queries of a sequence and the keys that they may see.

    batch    its number along the batch dims of Q, K, V and the output
    first    the row of Q, and of the output, that is its first query's; None for 0
    queries  their number
    keys     the number of its keys
    past     of these, those before the first query's own, where attention is causal
    table    its blocks; None where its keys lie in a row
    places   i32, the key of each row of Q in its sequence; None where rows follow one another from `past` on
    hidden   i32, of each row of Q which of the `HIDDEN_KEYS` keys before its own it doesn't see; None: it sees all
    """

    batch: V
    first: V | None
    queries: V
    keys: V
    past: V
    table: V | None = None
    places: V | None = None
    hidden: V | None = None

    @staticmethod
    def of(fn: Fn, a: Args, b: V, several: V | int = 1) -> Span:
        """That of element b of a batch, or of sequence b; of `several` sequences from b on, as far as they share their keys."""
        p = a.pages
        if p is None:
            return Span(b, None, a.sq, a.skv, a.past)
        first, end, keys = (
            fn.cast(fn.load(fn.gep(x, i, I32), I32), I64)
            for x, i in ((p.starts, b), (p.starts, fn.add(b, several)), (p.lengths, b))
        )
        queries = fn.sub(end, first)
        table = fn.gep(p.tables, fn.mul(b, p.columns), I32)
        return Span(fn.i64(0), first, queries, keys, fn.sub(keys, queries), table, p.positions, a.hidden)

    def row(self, fn: Fn, query: V) -> V:
        """The row of Q of a query."""
        return query if self.first is None else fn.add(query, self.first)

    def own(self, fn: Fn, query: V) -> V:
        """A query's own key."""
        if self.places is None:
            return fn.add(query, self.past)
        return fn.cast(fn.load(fn.gep(self.places, self.row(fn, query), I32), I32), I64)

    def hidden_keys(self, fn: Fn, query: V) -> V:
        """The number, of i32, that says which keys are hidden from a query."""
        assert self.hidden is not None
        return fn.load(fn.gep(self.hidden, self.row(fn, query), I32), I32)

    def position(self, fn: Fn, query: V) -> V:
        """That of a query in the text that it sees."""
        own = self.own(fn, query)
        if self.hidden is None:
            return own
        hidden = self.hidden_keys(fn, query)
        return fn.sub(own, fn.cast(fn.op(I32, f"llvm.intr.ctpop({hidden.name}) : ({I32}) -> {I32}"), I64))


def offset(fn: Fn, strides: Sequence[V], *index: V) -> V:
    """Sum of index times stride."""
    total = fn.mul(index[0], strides[0])
    for i, s in zip(index[1:], strides[1:], strict=False):
        total = fn.add(total, fn.mul(i, s))
    return total


def load_row(fn: Fn, p: V, elem: str, columns: int, c: int, mask_to: float = 0.0) -> V:
    """A vector of columns from c on of a row of `columns` elements as f32; lanes beyond the row are `mask_to`."""
    at, ty = fn.gep(p, c, elem), fn.vec(elem)
    left = columns - c
    if left >= fn.lanes:
        x = fn.load(at, ty)
    else:
        x = fn.masked_load(at, fn.dense([int(i < left) for i in range(fn.lanes)], I1), fn.const(mask_to, ty))
    return fn.cast(x, F32)


def copy_scales(fn: Fn, scales: Sequence[V], b: V, h: V, key0: V, count: V, dst: V) -> None:
    """Copies the scales (pointer, then strides) of `count` rows of a batch and kv head, from key0 on, to a dense array of f32."""
    p, *strides = scales
    src, stride = fn.gep(p, offset(fn, strides, b, h, key0), F32), strides[2]
    dense = fn.cmp("eq", stride, 1)
    vectors = fn.select(dense, fn.mul(fn.divu(count, fn.lanes), fn.lanes), fn.i64(0))
    with fn.loop(0, vectors, fn.lanes) as c:
        fn.store(fn.load(fn.gep(src, c.iv, F32), fn.vec(F32)), fn.gep(dst, c.iv, F32))
    with fn.loop(vectors, count) as r:
        fn.store(fn.load(fn.gep(src, fn.mul(r.iv, stride), F32), F32), fn.gep(dst, r.iv, F32))


def store_row(fn: Fn, x: V, p: V, elem: str, columns: int, c: int) -> None:
    """Stores f32 lanes as columns from c on of a row of `columns` elements."""
    at, y = fn.gep(p, c, elem), fn.cast(x, elem)
    if columns - c >= fn.lanes:
        fn.store(y, at)
    else:
        fn.masked_store(y, at, fn.dense([int(i < columns - c) for i in range(fn.lanes)], I1))


def weight(fn: Fn, x: V) -> V:
    """2^x of a score less the maximum; exactly 0 below 2^-99.5, so that products with values from 2^-26 on are normal numbers."""
    return exp2_below(fn, x, -100)


def guarded(fn: Fn, m: V) -> V:
    """The running maximum as it is subtracted: 0 while all keys so far are masked, so that no -inf - -inf arises."""
    return fn.select(fn.cmp("eq", m, -math.inf), fn.const(0.0, m.type), m)


def scale_of_queries(fn: Fn, a: Args, spec: Spec) -> V:
    """What queries are multiplied by: scores are in units of log 2 then, or what `capped` takes."""
    return fn.mul(a.scale, 1.0 / spec.softcap if spec.softcap else LOG2E)


def capped(fn: Fn, x: V, softcap: float) -> V:
    """Scores, given as shares of the softcap, in units of log 2."""
    return fn.mul(call(fn, "tanh", x), softcap * LOG2E)


def inverse_sum(fn: Fn, total: V, maximum: V, sink: V | None) -> V:
    """What sums of values, weighed by 2^(score - maximum), are multiplied by in the end: 1 / total, where a row's sink counts among
    the keys; 1 for a total of 0, whose row of the output is 0 as PyTorch has it."""
    one = fn.const(1.0, total.type)
    if sink is None:
        return fn.div(one, fn.select(fn.cmp("eq", total, 0.0), one, total))
    sink = fn.mul(sink, LOG2E)
    top = guarded(fn, raised(fn, maximum, sink))
    share = weight(fn, fn.sub(maximum, top))
    total = fn.fma(total, share, weight(fn, fn.sub(sink, top)))
    return fn.div(share, fn.select(fn.cmp("eq", total, 0.0), one, total))


def keep_where(fn: Fn, x: V, keep: V) -> V:
    """Scores `x` where `keep` holds, else -inf; a NaN that is kept becomes +inf, which makes the row NaN all the same.

    As a minimum: LLVM turns a select between a loaded value and a constant into a masked store, which later loads wait
    for.
    """
    limit = fn.select(keep, fn.const(math.inf, x.type), fn.const(-math.inf, x.type))
    return fn.select(fn.cmp("lt", x, limit), x, limit)


def masked(fn: Fn, x: V, mask: V) -> V:
    """Scores `x`, in units of log 2, under a mask along the same lanes."""
    return keep_where(fn, x, mask) if mask.elem == I1 else fn.fma(mask, fn.const(LOG2E, x.type), x)


def to_f32_rows(
    fn: Fn,
    src: V,
    stride: V,
    rows: V,
    columns: int,
    pad: int,
    elem: str,
    dst: V,
    scales: V | None = None,
    after: V | None = None,
) -> None:
    """Copies `rows` rows, multiplied by a scale each if there are any, to f32 rows of `pad` elements; padding is zero. As many rows
    from `after` on are prefetched."""
    with fn.loop(0, rows) as r:
        at = fn.mul(r.iv, stride)
        p, d = fn.gep(src, at, elem), fn.gep(dst, fn.mul(r.iv, pad), F32)
        scale = None if scales is None else fn.splat(fn.load(fn.gep(scales, r.iv, F32), F32))
        for c in range(0, pad, fn.lanes):
            if after is not None and c * BITS[elem] // 8 % 64 == 0:
                fn.prefetch(fn.gep(fn.gep(after, at, elem), c, elem), locality=2)
            x = load_row(fn, p, elem, columns, c)
            fn.store(x if scale is None else fn.mul(x, scale), fn.gep(d, c, F32))


def all_keys(fn: Fn, spec: Spec, span: Span, last_query: V) -> V:
    """End of the keys that any query up to `last_query` may see."""
    return fn.max(fn.min(span.keys, fn.add(span.own(fn, last_query), 1)), 0) if spec.is_causal else span.keys


def first_key(fn: Fn, spec: Spec, span: Span, query: V, last: V) -> V:
    """The first key that any query from `query` to `last` may see, or one before it; a multiple of the lanes. What lies before it
    isn't read: it may be another sequence's by now."""
    if spec.paging is None or not spec.paging.window:
        return fn.i64(0)
    position = span.position(fn, query)
    if spec.hides:  # positions of a tree don't ascend
        with fn.loop(fn.add(query, 1), fn.add(last, 1), 1, [position]) as q:
            q.yield_(fn.min(q.carried[0], span.position(fn, q.iv)))
        position = q.results[0]
    return fn.and_(fn.max(fn.sub(position, spec.paging.window - 1), 0), -fn.lanes)
