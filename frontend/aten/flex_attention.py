"""Attention whose scores and masks are functions of positions: torch.nn.attention.flex_attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention
from torch.utils import _pytree as pytree

from dhlo.errors import CompileError
from dhlo.frontend.aten.activation import _safe_softmax
from dhlo.frontend.aten.contraction import repeated_heads
from dhlo.frontend.aten.elementwise import ELEMENTWISE
from dhlo.frontend.autocast import eligible
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import higher_order
from dhlo.ir.ops import elementwise as ew

_NEW = {A.new_empty.default, A.new_full.default, A.new_ones.default, A.new_zeros.default}  # they take an element's dtype at most
_OF_ONE_ELEMENT = {A.index.Tensor, A.full_like.default, A.ones_like.default, A.zeros_like.default}


@higher_order(flex_attention)
def _flex_attention(
    b: OpBuilder,
    q: Value,
    k: Value,
    v: Value,
    score_mod: Any,
    block_mask: Sequence[Any],
    scale: Any,
    _kernel_options: Any,
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[Value]:
    """q [B, H, S, E], k [B or 1, H / g, T, E], v [B or 1, H / g, T, F] -> attention [B, H, S, F], the logarithms to the base 2 of
    its rows' sums and its rows' greatest scores over ln 2 [B, H, S], as PyTorch's `math_attention` computes them: the blocks of a
    mask say where kernels needn't look, and its function which keys are seen. A row that sees none gives zeros."""
    if (lower := b.importer.autocast) is not None:
        q, k, v = (b.convert(x, lower) if eligible(b.dtype(x).torch) else x for x in (q, k, v))
    batch, heads = b.shape(q)[:2]
    k, v = (repeated_heads(b, b.expand(x, [batch, *b.shape(x)[1:]]), heads) for x in (k, v))
    working = "f64" if b.dtype(q).name == "f64" else "f32"
    scores = b.mul(b.matmul(b.convert(q, working), b.swap(b.convert(k, working), 2, 3)), scale)
    positions = [b.iota([n if d == e else 1 for e in range(4)], d, "i64") for d, n in enumerate(b.shape(scores))]
    scores = b.expand(_at_each(b, score_mod, [scores, *positions], score_buffers), b.shape(scores))
    seen = _at_each(b, block_mask[-1], positions, mask_buffers)
    scores = b.select(seen, scores, -math.inf)
    top = b.reduce(scores, "max", [3], keepdim=True)
    none = b.ew(ew.Eq, top, -math.inf)
    sums = b.reduce(b.unary(ew.Exp, b.sub(scores, b.select(none, 0.0, top))), "sum", [3], keepdim=True)
    logs = b.select(none, -math.inf, b.add(top, b.unary(ew.Log, sums)))
    out = b.matmul(b.convert(_safe_softmax(b, scores, 3), b.dtype(q)), b.convert(v, b.dtype(q)))
    return [out, *(b.squeeze(b.mul(x, 1 / math.log(2)), [3]) for x in (logs, top))]


def _at_each(b: OpBuilder, graph: Any, elements: Sequence[Value], buffers: Sequence[Any]) -> Value:
    """What a graph over single elements makes of each of `elements`, which broadcast, and of tensors that are the same for all.
    Raises CompileError where it makes more than one element of an element."""
    nodes = iter(graph.graph.nodes)
    of_elements = {node for node, _ in zip((n for n in nodes if n.op == "placeholder"), elements, strict=False)}
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target in _NEW or not of_elements & set(node.all_input_nodes):
            continue
        of_elements.add(node)
        single = all(x.dim() == 0 for x in pytree.tree_leaves(node.meta["val"]) if isinstance(x, torch.Tensor))
        pointwise = node.target in ELEMENTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ())
        if not single or not pointwise and node.target not in _OF_ONE_ELEMENT:
            raise CompileError(
                f"a function of scores or positions calls {node.target}, which isn't an operator on single elements",
                hint="compute it of whole tensors before, and look up its elements: table[head, query, key]",
            )
    given = [x if not b.is_tensor(x) or b.rank(x) else b.reshape(x, [1] * 4) for x in buffers]
    made: Value = b.importer.subgraph(graph, [*elements, *given])
    return made
