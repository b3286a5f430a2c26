"""The operators that nn.MultiheadAttention and nn.TransformerEncoderLayer call in evaluation, as these modules' other code computes
them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dhlo.errors import CompileError
from dhlo.frontend.aten.activation import _gelu, _relu, _softmax
from dhlo.frontend.aten.contraction import _attention, _linear, attention_scores
from dhlo.frontend.aten.norm import _layer_norm
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew


def _masked(b: OpBuilder, mask: Value, kind: int | None, scores: Sequence[Any]) -> Value:
    """A mask as bools [B or 1, H or 1, Q or 1, K] that say what isn't attended to, of `kind` 0 ([Q, K]), 1 ([B, K]) or 2 (all
    dims). `scores`: sizes [B, H, Q, K]. Whatever isn't 0 in a mask of numbers masks, as in ATen's kernel."""
    if kind not in (0, 1, 2):
        raise CompileError(f"a mask of kind {kind}: there are 0 (of queries and keys), 1 (of keys) and 2 (of all dims)")
    if b.rank(mask) != 2:
        kind = 2
    own = {0: [2, 3], 1: [0, 3], 2: [0, 1, 2, 3]}[kind]
    if b.rank(mask) != len(own):
        raise CompileError(f"a mask of kind {kind} has {len(own)} dims, not {b.rank(mask)}")
    for d, size in zip(own, b.shape(mask), strict=True):
        b.dims.same(scores[d], size)
    return b.reshape(b.convert(mask, "i1"), [scores[d] if d in own else 1 for d in range(4)])


@lowers(A._native_multi_head_attention.default)
def _multi_head_attention(
    b: OpBuilder,
    query: Value,
    key: Value,
    value: Value,
    embed_dim: int,
    num_head: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    mask: Value | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> list[Value]:
    """Queries, keys and values [B, T, D], weights [3 D, D] and [D, D]. Queries that may attend to nothing give NaN."""
    rows, length, depth = *b.shape(query)[:2], embed_dim // num_head

    def projected(x: Value, part: int) -> Value:
        weight, bias = (b.slice(w, 0, part * embed_dim, embed_dim) for w in (qkv_weight, qkv_bias))
        return b.swap(b.reshape(_linear(b, x, weight, bias), [rows, length, num_head, depth]), 1, 2)

    q, k, v = (projected(x, part) for part, x in enumerate((query, key, value)))
    sizes = [rows, num_head, length, length]
    masked = None if mask is None else _masked(b, mask, mask_type, sizes)
    if need_weights:
        scores = b.in_f32(lambda q, k: attention_scores(b, q, k, None, causal=False, scale=1 / math.sqrt(depth)), q, k)
        weights = _softmax(b, scores if masked is None else b.select(masked, -math.inf, scores), 3)
        mixed = b.matmul(weights, v)
        if average_attn_weights:
            weights = b.in_f32(lambda x: b.mul(b.reduce(x, "sum", [1]), 1 / num_head), weights)
    else:
        weights = b.full([0], 0, b.dtype(query))
        mixed = _attention(b, q, k, v, None if masked is None else b.op(ew.Not, [masked]))
        if masked is not None:
            mixed = b.select(b.reduce(masked, "all", [3], keepdim=True), math.nan, mixed)
    mixed = b.reshape(b.swap(mixed, 1, 2), [rows, length, embed_dim])
    return [_linear(b, mixed, proj_weight, proj_bias), weights]


@lowers(A._transformer_encoder_layer_fwd.default)
def _transformer_encoder_layer(
    b: OpBuilder,
    src: Value,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Value,
    norm_bias_1: Value,
    norm_weight_2: Value,
    norm_bias_2: Value,
    ffn_weight_1: Value,
    ffn_bias_1: Value,
    ffn_weight_2: Value,
    ffn_bias_2: Value,
    mask: Value | None = None,
    mask_type: int | None = None,
) -> Value:
    def attend(x: Value) -> Value:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _multi_head_attention(b, x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]

    def feed_forward(x: Value) -> Value:
        hidden = _linear(b, x, ffn_weight_1, ffn_bias_1)
        return _linear(b, _gelu(b, hidden) if use_gelu else _relu(b, hidden), ffn_weight_2, ffn_bias_2)

    x = src
    for block, weight, bias in ((attend, norm_weight_1, norm_bias_1), (feed_forward, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = b.add(block(_layer_norm(b, x, [embed_dim], weight, bias, eps)), x)
        else:
            x = _layer_norm(b, b.add(block(x), x), [embed_dim], weight, bias, eps)
    return x
