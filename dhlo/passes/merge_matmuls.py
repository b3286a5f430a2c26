"""Joins matrix products of one left side with constant right sides into one wider product (query, key and value, say)."""

from __future__ import annotations

from typing import Any

import torch

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.elementwise import Add
from dhlo.ir.ops.movement import Broadcast, Slice, Transpose, Weight
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["merge_matmuls"]


def merge_matmuls(module: Module, weights: dict[str, torch.Tensor]) -> None:
    """Products `x @ transpose(weight)` of the same x whose results are only biased and then read as views become one; each result
    is a slice of it. One pass over x instead of several, and one launch."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            by_left: dict[Any, list[Any]] = {}
            for op in block.operations:
                if isinstance(op, Matmul) and _constant_side(op, weights) is not None:
                    by_left.setdefault(op.operands[0], []).append(op)
            for ops in by_left.values():
                chains = [c for c in (_chain(op, weights) for op in ops) if c is not None]
                for biased in (False, True):
                    same = [c for c in chains if (c[2] is not None) == biased]
                    if len(same) > 1:
                        _merge(same, weights)


def _constant_side(op: Any, weights: dict[str, torch.Tensor]) -> str | None:
    """The weight [N, K] that is transposed on the right."""
    t = defining(op.operands[1])
    w = defining(t.operands[0]) if isinstance(t, Transpose) else None
    if not isinstance(w, Weight) or from_mlir(w.results[0]).rank != 2:
        return None
    name: str = attr(w, "name_")
    return name if name in weights else None


def _chain(op: Any, weights: dict[str, torch.Tensor]) -> tuple[Any, Any, str | None] | None:
    """(product, final value, bias weight): the product, perhaps with a bias, that only views and anchors read next."""
    out = op.results[0]
    uses = [u.owner.operation.opview for u in out.uses]
    bias: str | None = None
    if len(uses) == 1 and isinstance(uses[0], Add):
        other = next((v for v in uses[0].operands if v != out), None)
        b = None if other is None else defining(other)
        if isinstance(b, Broadcast) and attr(b, "dims") == [from_mlir(out).rank - 1]:
            w = defining(b.operands[0])
            if isinstance(w, Weight) and attr(w, "name_") in weights:
                bias = attr(w, "name_")
                out = uses[0].results[0]
                uses = [u.owner.operation.opview for u in out.uses]
    if not uses or any(getattr(u, "kind", None) not in (Kind.MOVEMENT, Kind.REDUCTION, Kind.ATTENTION) for u in uses):
        return None
    return op, out, bias


def _merge(chains: list[tuple[Any, Any, str | None]], weights: dict[str, torch.Tensor]) -> None:
    names = [_constant_side(op, weights) for op, _, _ in chains]
    assert all(n is not None for n in names)
    rows = [weights[n] for n in names]  # type: ignore[index]
    if len({(w.shape[1], w.dtype) for w in rows}) != 1:
        return
    name = "merged." + ".".join(str(n) for n in names)
    weights[name] = torch.cat([w.detach() for w in rows])
    first = chains[0][0]
    with ir.InsertionPoint(first.operation), first.location:
        t = TensorType.of(from_mlir(first.operands[1]).dtype, list(weights[name].shape))
        w = build(Weight, [], {"name_": name}, results=[t]).results[0]
        product = build(Matmul, [first.operands[0], build(Transpose, [w], {"perm": [1, 0]}).results[0]]).results[0]
        if chains[0][2] is not None:
            bias = "merged." + ".".join(str(c[2]) for c in chains)
            weights[bias] = torch.cat([weights[str(c[2])].detach() for c in chains])
            columns = TensorType.of(from_mlir(product).dtype, [t.shape[0]])
            b = build(Weight, [], {"name_": bias}, results=[columns]).results[0]
            wide = build(Broadcast, [b], {"dims": [from_mlir(product).rank - 1]}, results=[from_mlir(product)]).results[0]
            product = build(Add, [product, wide]).results[0]
        start = 0
        for (_, out, _), r in zip(chains, rows, strict=True):
            rank = from_mlir(out).rank
            part = build(
                Slice, [product], {"starts": ["0"] * (rank - 1) + [str(start)], "steps": [1] * rank}, results=[from_mlir(out)]
            ).results[0]
            out.replace_all_uses_with(part)
            start += r.shape[0]
