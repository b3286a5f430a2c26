"""Attention over keys and values that lie in blocks of a pool, for sequences of all lengths at once."""

# ruff: noqa: E704
import math
from typing import Any

import sympy
import torch

from dhlo.ir.dialect import Flag, Kind, Op, Out, Tensor, TypeError_, Variadic, attr, equal_shapes
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import attend, check_extras, segments_of
from dhlo.ir.symbols import is_static
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]
HIDDEN_KEYS = 32
"""How many keys before a token's own may be hidden from it."""


class PagedAttention(Op, name="paged_attention"):
    """Attention of tokens of several sequences, packed one sequence behind the other, each over keys and values of its own.

    q [1, Hq, T, D]; keys [Hkv, S, D] and values [Hkv, S, Dv] are pools of S slots, `block` slots in a row are a block. All of i32:
    tables [B, M], the blocks of each sequence in order; starts [B + 1], ascending: its tokens are starts[b] to starts[b + 1] - 1;
    lengths [B]: how many keys it has, of which, where attention is causal or has a window, those of its tokens are the last. Query
    head h reads kv head h // (Hq / Hkv).
    An optional mask [1, Hq, T, M * block] says of token t and key j of its sequence whether it attends (bool), or is added.
    `causal`: a token sees keys up to its own; `window`, if it isn't 0: and of these the last `window` alone. `softcap` and sinks
    are those of `Attention`. A row that may attend to nothing, and one of no sequence, gives zeros. (The layout is that of
    PagedAttention, Kwon et al. 2023.)
    `hidden`, i32 [T], is of causal attention and has a number of each token, whose bits, from the lowest one on, are the 32 keys
    before its own: it doesn't see those of bits that are set. So tokens may be a tree, of which each sees those on its way to the
    root (Miao et al. 2024); its place in the text, which windows end with, is as many before its own key as are hidden."""

    kind = Kind.ATTENTION
    least = 6  # operands
    q: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    starts: Tensor
    lengths: Tensor
    mask: Variadic  # none or one
    sinks: Variadic  # none or some
    hidden: Variadic  # none or some
    block: ir.IntegerAttr
    window: ir.IntegerAttr
    scale: ir.FloatAttr
    softcap: ir.FloatAttr
    causal: Flag
    y: Out

    @classmethod
    def segments(cls, operands: list[TensorType]) -> list[int]:
        hidden = sum(t.rank == 1 and t.dtype.is_int for t in operands[cls.least :])
        return [*segments_of(cls.least, operands[: len(operands) - hidden]), hidden]

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        q, keys, values, tables, starts, lengths, *more = operands
        if (q.rank, keys.rank, values.rank, tables.rank, starts.rank, lengths.rank) != (4, 3, 3, 2, 1, 1):
            raise TypeError_("paged attention wants q of rank 4, pools of rank 3, tables, starts and lengths")
        if not q.dtype.is_float or any(t.dtype != q.dtype for t in (keys, values)):
            raise TypeError_("paged attention wants floats of one dtype")
        if any(t.dtype.name != "i32" for t in (tables, starts, lengths)):
            raise TypeError_("tables, starts and lengths are of i32")
        if attrs["block"] < 1 or attrs["window"] < 0 or not 0 <= attrs["softcap"] < math.inf:
            raise TypeError_("a block has a slot or more, and a window and a softcap are 0 or more")
        equal_shapes([keys.with_shape(keys.shape[:2]), values.with_shape(values.shape[:2])], "keys and values")
        equal_shapes([keys.with_shape(keys.shape[2:]), q.with_shape(q.shape[3:])], "queries and keys")
        equal_shapes([q.with_shape(q.shape[:1]), q.with_shape([1])], "the batch of packed tokens and 1")
        sequences = tables.shape[0]
        equal_shapes([lengths.with_shape([sequences]), lengths], "tables and lengths")
        equal_shapes([starts.with_shape([sequences + 1]), starts], "tables, and starts of one more")
        if more and more[-1].dtype.is_int:
            hidden = more.pop()
            if hidden.dtype.name != "i32" or hidden.rank != 1 or not attrs["causal"]:
                raise TypeError_("hidden keys are numbers of i32 of the tokens of causal attention")
            equal_shapes([hidden, hidden.with_shape([q.shape[2]])], "tokens and the numbers of their hidden keys")
        check_extras(more, q, tables.shape[1] * attrs["block"])
        heads, kv = q.shape[1], keys.shape[0]
        if (
            is_static(heads)
            and is_static(kv)
            and (kv == 0) != (heads == 0)
            or kv != 0
            and is_static(heads / kv)
            and heads % kv != 0
        ):
            raise TypeError_(f"{heads} heads don't divide among {kv}")
        return [q.with_shape([*q.shape[:3], values.shape[2]])]

    def reference(self, args: Args, sizes: Any) -> Args:
        q, keys, values, tables, starts, lengths, *more = args
        block, window, causal, scale, softcap = (attr(self, n) for n in ("block", "window", "causal", "scale", "softcap"))
        hidden = more.pop() if more and more[-1].dtype == torch.int32 else None
        mask, sinks = (next((x for x in more if x.dim() == rank), None) for rank in (4, 1))
        y = q.new_zeros(*q.shape[:3], values.shape[2])
        group = q.shape[1] // max(keys.shape[0], 1)
        for table, first, end, length in zip(
            tables.long(), starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), strict=True
        ):
            j, own = torch.arange(length), torch.arange(length - (end - first), length)[:, None]
            slots = table[j // block] * block + j % block
            k, v = (x[:, slots].repeat_interleave(group, 0)[None] for x in (keys, values))
            sees = torch.ones(end - first, length, dtype=torch.bool)
            place = own
            if causal:
                sees &= j <= own
            if hidden is not None:
                bit, number = j - own + HIDDEN_KEYS, hidden[first:end, None].long() & 0xFFFFFFFF
                sees &= (bit < 0) | (bit >= HIDDEN_KEYS) | (number >> bit.clamp(0, HIDDEN_KEYS - 1) & 1 == 0)
                place = own - sum(number >> k & 1 for k in range(HIDDEN_KEYS))
            if window:
                sees &= j > place - window
            if mask is not None:
                m = mask[:, :, first:end, :length]
                sees = sees & m if m.dtype == torch.bool else torch.where(sees, m, -torch.inf)
            y[:, :, first:end] = attend(q[:, :, first:end], k, v, sees, sinks, scale, softcap)
        return [y]

    def flops(self) -> sympy.Expr:
        """Of both products, were all tables full: how many keys there are is known at the call alone."""
        (_, heads, tokens, depth), out = from_mlir(self.operands[0]).shape, from_mlir(self.results[0])
        return 2 * heads * tokens * from_mlir(self.operands[3]).shape[1] * attr(self, "block") * (depth + out.shape[3])


def hidden_keys(op: Any) -> Any:
    """The operand `hidden` of attention over pools; None where there is none."""
    more = list(op.operands)[PagedAttention.least :]
    return more[-1] if more and from_mlir(more[-1]).dtype.is_int else None


__all__ = ["HIDDEN_KEYS", "PagedAttention", "hidden_keys"]
