"""Where complex tensors meet pairs of real ones: at the arguments and results of a program. Between them there are only pairs."""

# ruff: noqa: E704
from typing import Any

import torch

from dhlo.ir.dialect import Kind, Op, Out, Tensor, TypeError_, equal_shapes
from dhlo.ir.pull import Element, Elements, Position
from dhlo.ir.types import DTYPES, TensorType

__all__ = ["Imag", "Interleave", "Real"]

Args = list[torch.Tensor]
_REAL = {d.name: d.register for d in DTYPES.values() if d.is_complex}


class _Part(Op):
    """Base: every second number of a complex tensor in memory."""

    kind = Kind.MOVEMENT
    x: Tensor
    y: Out
    part = 0

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if not operands[0].dtype.is_complex:
            raise TypeError_(f"{operands[0]} is not complex")
        return [operands[0].with_dtype(_REAL[operands[0].dtype.name])]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [torch.view_as_real(args[0].resolve_conj())[..., self.part].contiguous()]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        return em.component(self.operands[0], idx, self.part)


class Real(_Part, name="real"):
    """The real part (aten.real)."""

    part = 0


class Imag(_Part, name="imag"):
    """The imaginary part (aten.imag)."""

    part = 1


class Interleave(Op, name="interleave"):
    """The complex tensor of a real and an imaginary part (aten.complex)."""

    kind = Kind.OPAQUE
    re: Tensor
    im: Tensor
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if operands[0].dtype.name not in _REAL.values() or operands[0].dtype != operands[1].dtype:
            raise TypeError_("interleave wants two tensors of f16, of f32 or of f64")
        equal_shapes(operands, "parts")
        return [operands[0].with_dtype(f"complex<{operands[0].dtype.name}>")]

    def computes(self, k: int) -> bool:
        return True

    def reference(self, args: Args, sizes: Any) -> Args:
        return [torch.complex(*args)]
