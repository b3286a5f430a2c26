"""Images whose channels are each multiplied by a number before a convolution, as squeeze-and-excitation does."""

from __future__ import annotations

from typing import Any

from dhlo.ir.coded import stored_image
from dhlo.ir.dialect import attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import Conv
from dhlo.ir.ops.elementwise import Mul
from dhlo.ir.ops.movement import Broadcast
from dhlo.ir.types import from_mlir

__all__ = ["gate_of", "product_of"]


def gate_of(op: Any) -> tuple[Value, Value] | None:
    """The image [B, C, *sizes] and the numbers [B, C, 1, ...] whose product a convolution reads, where its kernels multiply them
    themselves: each position is a product over channels. Both are of one type, which may be a narrow one that the kernels widen.
    None elsewhere (Hu et al., Squeeze-and-Excitation Networks, 2018)."""
    product = product_of(op)
    if product is None:
        return None
    x = from_mlir(product.results[0])
    if attr(op, "transposed") or attr(op, "groups") != 1 or x.shape[1] == 1 or not op.pointwise:
        return None
    for image, gate in (tuple(product.operands), tuple(reversed(product.operands))):
        wide = defining(gate)
        if not isinstance(wide, Broadcast) or isinstance(defining(image), Broadcast) or attr(wide, "dims") != list(range(x.rank)):
            continue
        numbers = wide.operands[0]
        if from_mlir(numbers).shape == (*x.shape[:2], *[1] * (x.rank - 2)):
            return image, numbers
    return None


def product_of(op: Any) -> Any:
    """The multiplication whose result a convolution of f32 or f64 reads, as it is or widened; None if there is none."""
    if not isinstance(op, Conv) or from_mlir(op.operands[0]).dtype.name not in ("f32", "f64"):
        return None
    stored = stored_image(op)
    product = defining(op.operands[0] if stored is None else stored)
    return product if isinstance(product, Mul) else None
