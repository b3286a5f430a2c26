"""Images of convolutions that hold only numbers of bf16 or f16 are given to them, and stored, in that type."""

from __future__ import annotations

from typing import Any

from dhlo.ir.coded import stored_image
from dhlo.ir.dialect import build, defining
from dhlo.ir.handles import Block, Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Conv
from dhlo.ir.ops.movement import Full
from dhlo.ir.types import from_mlir
from dhlo.passes.simplify import is_rounded

__all__ = ["narrow_images"]


def narrow_images(module: Module) -> None:
    """Rounds, to no effect, the f32 images of convolutions that hold only numbers of bf16 or f16, and converts them back: half the
    bytes, which the kernels of convolutions widen as they load them. What else reads an image reads it so, too."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            _block(block)


def _block(block: Block) -> None:
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                _block(inner)
        if isinstance(op, Conv) and stored_image(op) is None and from_mlir(op.operands[0]).dtype.name == "f32":
            _narrow(op)


def _narrow(op: Any) -> None:
    image = op.operands[0]
    t, made = from_mlir(image), defining(image)
    if made is None or isinstance(made, Full):
        return
    narrow = next((n for d in ("bf16", "f16") if is_rounded(image, (n := t.with_dtype(d)).dtype)), None)
    if narrow is None:
        return
    readers = list(image.uses)
    with ir.InsertionPoint.after(made.operation), op.location:
        stored = build(ew.Convert, [image], results=[narrow]).results[0]
        wide = build(ew.Convert, [stored], results=[t]).results[0]
    for use in readers:
        use.owner.operation.operands[use.operand_number] = wide
