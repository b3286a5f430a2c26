"""Rounds what is multiplied with quantised weights to int8, as the user asks (`Options.activations`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from dhlo.errors import CompileError
from dhlo.ir.coded import coded
from dhlo.ir.dialect import attr, build
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Matmul, RoundedMatmul
from dhlo.ir.ops.quantised import Dequantize
from dhlo.ir.ops.sequence import GroupedMatmul, RoundedGroupedMatmul
from dhlo.ir.types import from_mlir

__all__ = ["check_activations", "integer_group", "request_activations", "round_activations", "rounded_products"]

_REQUEST, _REPORT = "dhlo.activations", "dhlo.rounded"  # attributes of the module
_INTEGERS: Final = {"i8": 4, "ui8": 4, "i4": 8, "ui4": 8, "f4e2m1fn": 8}
"""Codes that are multiplied as integers (twice a number of MXFP4 is one), and of how many of them groups are multiples."""


def request_activations(modules: Collection[Module], wanted: str) -> None:
    """Writes down, for the pass on each entry of a model, the format that the user asks for. Raises CompileError if there is none
    of that name."""
    if wanted in ("", "f32"):
        return
    if wanted != "int8":
        raise CompileError(f"activations: there is no format '{wanted}'", hint="formats are int8, and f32 for as they are")
    for module in modules:
        with module.context:
            module.operation.attributes[_REQUEST] = ir.StringAttr.get(wanted)


def check_activations(modules: Collection[Module]) -> None:
    """Raises CompileError where activations shall be rounded and no entry has a product of quantised weights."""
    if any(_REQUEST in m.operation.attributes for m in modules) and not any(map(rounded_products, modules)):
        raise CompileError(
            "activations: no product has quantised weights to multiply them with as integers",
            hint='weights="int4:64" quantises them; int8 is multiplied so in groups of a multiple of 4, int4 and mxfp4 of 8',
        )


def rounded_products(module: Module) -> int:
    """Of how many products the pass rounded the rows."""
    attributes = module.operation.attributes
    return int(ir.IntegerAttr(attributes[_REPORT]).value) if _REPORT in attributes else 0


def round_activations(module: Module) -> None:
    """Lets products whose right side is quantised integers round their rows to int8, if the module asks for it: each group of k
    that shares a scale of the weights by scales of its own."""
    if _REQUEST not in module.operation.attributes:
        return
    count = 0
    for block in bodies(module):
        for op in list(walk(block)):
            group = integer_group(op)
            if group is None:
                count += isinstance(op, RoundedMatmul)  # the program's own
                continue
            with ir.InsertionPoint(op.operation), op.location:
                to = RoundedMatmul if isinstance(op, Matmul) else RoundedGroupedMatmul
                new = build(to, list(op.operands), {"group": group}, results=[from_mlir(op.results[0])])
            op.results[0].replace_all_uses_with(new.results[0])
            op.operation.erase()
            count += 1
    module.operation.attributes[_REPORT] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)


def integer_group(op: Any) -> int | None:
    """Steps of k that share a scale of a product's weights, where these are quantised integers that kernels multiply as such; else
    None."""
    if not isinstance(op, (Matmul, GroupedMatmul)) or from_mlir(op.operands[0]).dtype.name not in ("f32", "f16", "bf16"):
        return None
    found = coded(op.operands[1])
    if found is None or not isinstance(found.op, Dequantize) or attr(found.op, "code") not in _INTEGERS:
        return None
    dim = found.perm[-2]
    k, *groups = (int(from_mlir(v).shape[dim]) for v in found.op.operands)
    most = max(groups, default=1)
    if not k or set(groups) - {1, most} or most > 1 and k // most % _INTEGERS[attr(found.op, "code")]:
        return None
    return k // most
