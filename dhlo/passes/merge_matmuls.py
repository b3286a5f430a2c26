"""Joins matrix products of one left side with constant right sides into one wider product (query, key and value, say)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.adapters import Adapt
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.elementwise import Add
from dhlo.ir.ops.movement import Broadcast, Slice, Transpose, Weight
from dhlo.ir.ops.quantised import Dequantize, along
from dhlo.ir.types import TensorType, from_mlir, from_torch_dtype

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
                alike: dict[Any, list[Any]] = {}
                for op in ops:
                    chain, side = _chain(op, weights), _constant_side(op, weights)
                    if chain is not None and side is not None:
                        alike.setdefault((chain.joins, side.joins(weights)), []).append((chain, side))
                for same in alike.values():
                    if len(same) > 1:
                        _merge([chain for chain, _ in same], [side for _, side in same], weights)


@dataclass(frozen=True)
class _Chain:
    """A product, perhaps with adapters and a bias (a weight), that only views and anchors read next: as `out`."""

    product: Any
    out: Any
    adapt: Any
    bias: str | None

    @property
    def joins(self) -> Any:
        """What must be equal for chains to be joined."""
        return self.bias is not None, None if self.adapt is None else (*self.adapt.operands[2:], attr(self.adapt, "rank"))


@dataclass(frozen=True)
class _Rows:
    """A constant [N, K] that is transposed on the right: a weight, or the codes and parameters that a `dequantize` op takes."""

    names: tuple[str, ...]
    dequantize: Any = None

    def joins(self, weights: dict[str, torch.Tensor]) -> Any:
        """What must be equal for rows to be joined: everything but how many there are."""
        data = [weights[n] for n in self.names]
        code = () if self.dequantize is None else (attr(self.dequantize, "code"), attr(self.dequantize, "dtype"))
        return (code, *((w.shape[1], w.dtype) for w in data))


def _constant_side(op: Any, weights: dict[str, torch.Tensor]) -> _Rows | None:
    """The rows that a product takes as its columns."""
    t = defining(op.operands[1])
    made = defining(t.operands[0]) if isinstance(t, Transpose) else None
    if made is None or from_mlir(t.operands[0]).rank != 2 or not isinstance(made, (Weight, Dequantize)):
        return None
    ops = [made] if isinstance(made, Weight) else list(map(defining, made.operands))
    if not all(isinstance(w, Weight) and attr(w, "name_") in weights for w in ops):
        return None
    return _Rows(tuple(attr(w, "name_") for w in ops), None if isinstance(made, Weight) else made)


def _chain(op: Any, weights: dict[str, torch.Tensor]) -> _Chain | None:
    out, uses = _read(op)
    adapt = bias = None
    if len(uses) == 1 and isinstance(uses[0], Adapt) and uses[0].operands[0] == out:
        adapt = uses[0]
        out, uses = _read(adapt)
    if len(uses) == 1 and isinstance(uses[0], Add):
        other = next((v for v in uses[0].operands if v != out), None)
        b = None if other is None else defining(other)
        if isinstance(b, Broadcast) and attr(b, "dims") == [from_mlir(out).rank - 1]:
            w = defining(b.operands[0])
            if isinstance(w, Weight) and attr(w, "name_") in weights:
                bias = attr(w, "name_")
                out, uses = _read(uses[0])
    if not uses or any(getattr(u, "kind", None) not in (Kind.MOVEMENT, Kind.REDUCTION, Kind.ATTENTION) for u in uses):
        return None
    return _Chain(op, out, adapt, bias)


def _read(op: Any) -> tuple[Any, list[Any]]:
    """An op's result, and what reads it."""
    out = op.results[0]
    return out, [u.owner.operation.opview for u in out.uses]


def _merge(chains: list[_Chain], sides: list[_Rows], weights: dict[str, torch.Tensor]) -> None:
    first = chains[0].product
    counts = [weights[side.names[0]].shape[0] for side in sides]
    with ir.InsertionPoint(first.operation), first.location:
        w = _join(sides, counts, weights)
        t = from_mlir(w)
        product = build(Matmul, [first.operands[0], build(Transpose, [w], {"perm": [1, 0]}).results[0]]).results[0]
        if chains[0].adapt is not None:
            product = _adapted(product, [c.adapt for c in chains])
        if chains[0].bias is not None:
            bias = "merged." + ".".join(str(c.bias) for c in chains)
            weights[bias] = torch.cat([weights[str(c.bias)].detach() for c in chains])
            columns = TensorType.of(from_mlir(product).dtype, [t.shape[0]])
            b = build(Weight, [], {"name_": bias}, results=[columns]).results[0]
            wide = build(Broadcast, [b], {"dims": [from_mlir(product).rank - 1]}, results=[from_mlir(product)]).results[0]
            product = build(Add, [product, wide]).results[0]
        start = 0
        for chain, count in zip(chains, counts, strict=True):
            rank = from_mlir(chain.out).rank
            part = build(
                Slice,
                [product],
                {"starts": ["0"] * (rank - 1) + [str(start)], "steps": [1] * rank},
                results=[from_mlir(chain.out)],
            ).results[0]
            chain.out.replace_all_uses_with(part)
            start += count


def _adapted(product: Any, parts: list[Any]) -> Any:
    """Products side by side with the adapters of each."""
    first = parts[0]
    attrs = {n: [x for op in parts for x in attr(op, n)] for n in ("at", "columns")}
    return build(Adapt, [product, *list(first.operands)[1:]], {**attrs, "rank": attr(first, "rank")}).results[0]


def _join(sides: list[_Rows], counts: list[int], weights: dict[str, torch.Tensor]) -> Any:
    """All rows one after the other, as a weight or dequantised."""
    operands = []
    for names in zip(*(side.names for side in sides), strict=True):
        data = [weights[n].detach() for n in names]
        if any(d.shape[0] not in (1, n) for d, n in zip(data, counts, strict=True)):
            data = [along(d, (n, d.shape[1])) for d, n in zip(data, counts, strict=True)]  # blocks of rows
        name = "merged." + ".".join(names)
        weights[name] = torch.cat([d.expand(n, d.shape[1]) for d, n in zip(data, counts, strict=True)])
        t = TensorType.of(from_torch_dtype(weights[name].dtype), list(weights[name].shape))
        operands.append(build(Weight, [], {"name_": name}, results=[t]).results[0])
    made = sides[0].dequantize
    if made is None:
        return operands[0]
    return build(Dequantize, operands, {n: attr(made, n) for n in ("code", "dtype")}).results[0]
