"""What a block of scores, of keys by query rows in the vector lanes, loses to masks, positions and hidden keys."""

from __future__ import annotations

import functools

from dhlo.codegen.families.attention.common import LOG2E, Spec, keep_where
from dhlo.codegen.kernel_ir.builder import F32, I1, I32, I64, Fn, V
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.ops.paged import HIDDEN_KEYS

__all__ = ["add_mask", "any_hidden", "hide_by_position", "hide_keys"]


def add_mask(fn: Fn, spec: Spec, at: dict[str, V], b: V, key0: V, count: V) -> None:
    """Applies the caller's mask: its vectors run along keys, so that each square block is transposed.

    Boolean masks are kept as a bit a key and transposed by testing the same bit of a vector of rows.
    """
    assert spec.emit_mask is not None
    with fn.loop(0, spec.halves) as half:
        row0 = fn.mul(half.iv, fn.lanes)
        with fn.loop(0, fn.lanes) as r:
            row = fn.add(row0, r.iv)
            head = fn.load(fn.gep(at["heads"], row, I64), I64)
            query = fn.cast(fn.load(fn.gep(at["query"], row, I32), I32), I64)
            with fn.loop(0, count, fn.lanes) as c:
                lanes = fn.tail_mask(fn.sub(count, c.iv))
                mask = spec.emit_mask(fn, b, head, query, fn.add(key0, c.iv), lanes)
                if mask.elem == I1:
                    bits = fn.op(f"i{fn.lanes}", f"llvm.bitcast {mask.name} : {mask.type} to i{fn.lanes}")
                    bits = fn.op(I32, f"arith.extui {bits.name} : {bits.type} to {I32}")  # no cast: i4 is no element type
                    fn.store(bits, fn.gep(fn.gep(at["bias"], c.iv, I32), r.iv, I32))
                else:
                    fn.store(fn.mul(mask, LOG2E), fn.gep(fn.gep(at["bias"], fn.mul(r.iv, spec.keys), F32), c.iv, F32))
        with fn.loop(0, count, fn.lanes) as c:
            s = fn.gep(fn.gep(at["scores"], fn.mul(c.iv, spec.rows), F32), row0, F32)
            if mask.elem == I1:
                _keep_bits(fn, spec, fn.load(fn.gep(at["bias"], c.iv, I32), fn.vec(I32)), s)
            else:
                rows = fn.gep(at["bias"], c.iv, F32)
                _add_block(fn, spec, [fn.load(fn.gep(rows, i * spec.keys, F32), fn.vec(F32)) for i in range(fn.lanes)], s)


def _keep_bits(fn: Fn, spec: Spec, bits: V, s: V) -> None:
    """Scores of a vector of keys become -inf where bit `key` of a lane's bits is clear."""
    for i in range(fn.lanes):
        p = fn.gep(s, i * spec.rows, F32)
        keep = fn.cmp("ne", fn.and_(bits, 1 << i), 0)
        fn.store(keep_where(fn, fn.load(p, fn.vec(F32)), keep), p)


def _add_block(fn: Fn, spec: Spec, rows: list[V], s: V) -> None:
    """Adds vectors along keys, one a query, to the scores of as many keys."""
    for i, x in enumerate(transpose_block(fn, rows)):
        p = fn.gep(s, i * spec.rows, F32)
        fn.store(fn.add(fn.load(p, fn.vec(F32)), x), p)


def hide_by_position(fn: Fn, spec: Spec, at: dict[str, V], keep: str, key0: V, count: V) -> None:
    """Scores of keys, numbered from key0 on, become -inf but where `key keep own` holds of the key of a lane's query, or, where
    `keep` is "gt", of its position."""
    of = at["position" if keep == "gt" and spec.hides else "own"]
    queries = [fn.load(fn.gep(of, half * fn.lanes, I32), fn.vec(I32)) for half in range(spec.halves)]
    with fn.loop(0, count) as j:
        key = fn.splat(fn.cast(fn.add(key0, j.iv), I32))
        row = fn.gep(at["scores"], fn.mul(j.iv, spec.rows), F32)
        for half in range(spec.halves):
            p = fn.gep(row, half * fn.lanes, F32)
            fn.store(keep_where(fn, fn.load(p, fn.vec(F32)), fn.cmp(keep, key, queries[half])), p)


def any_hidden(fn: Fn, spec: Spec, at: dict[str, V]) -> V:
    """Whether there is a key that some row of the block doesn't see."""
    numbers = [fn.load(fn.gep(at["hidden"], half * fn.lanes, I32), fn.vec(I32)) for half in range(spec.halves)]
    return fn.cmp("ne", fn.reduce("or", functools.reduce(fn.or_, numbers)), 0)


def hide_keys(fn: Fn, spec: Spec, at: dict[str, V], key0: V, count: V) -> None:
    """Scores of keys, numbered from key0 on, become -inf where they are hidden from a lane's query."""
    halves = range(spec.halves)
    own, numbers = ([fn.load(fn.gep(at[x], half * fn.lanes, I32), fn.vec(I32)) for half in halves] for x in ("own", "hidden"))
    with fn.loop(0, count) as j:
        key = fn.splat(fn.cast(fn.add(fn.add(key0, j.iv), HIDDEN_KEYS), I32))
        row = fn.gep(at["scores"], fn.mul(j.iv, spec.rows), F32)
        for half in halves:
            p, bit = fn.gep(row, half * fn.lanes, F32), fn.sub(key, own[half])
            shown = fn.cmp("eq", fn.and_(fn.shr(numbers[half], fn.and_(bit, HIDDEN_KEYS - 1)), 1), 0)
            keep = fn.or_(shown, fn.cmp("uge", bit, HIDDEN_KEYS))
            fn.store(keep_where(fn, fn.load(p, fn.vec(F32)), keep), p)
