"""Constants as products keep them, in panels of columns (packed B of BLIS, Van Zee and van de Geijn 2015), and back."""

# ruff: noqa: E704
from typing import Any

import torch

from dhlo.ir.dialect import Flag, Kind, Op, Out, Tensor, TypeError_, attr
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import Movement
from dhlo.ir.pull import Element, Elements, Position
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]


class Panels(Op, name="panels"):
    """A constant matrix [k, n], or [n, k] if `transposed`, in panels [ceil(n / columns), ceil(k / step), columns, step], with zeros
    beyond its columns and its depth: what products read whose right side [k, n] is, and where these keep it."""

    kind = Kind.WEIGHT
    x: Tensor
    columns: ir.IntegerAttr
    step: ir.IntegerAttr
    transposed: Flag
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, columns, step = operands[0], attrs["columns"], attrs["step"]
        if x.rank != 2 or not x.is_static or columns < 1 or step < 1:
            raise TypeError_("panels are of a matrix of known size, and hold at least a column and a step")
        k, n = map(int, reversed(x.shape) if attrs["transposed"] else x.shape)
        return [x.with_shape([-(-n // columns), -(-k // step), columns, step])]

    def reference(self, args: Args, sizes: Any) -> Args:
        x = args[0].t() if attr(self, "transposed") else args[0]
        (k, n), columns, step = x.shape, attr(self, "columns"), attr(self, "step")
        whole = x.new_zeros(k + -k % step, n + -n % columns)
        whole[:k, :n] = x
        return [whole.reshape(whole.shape[0] // step, step, whole.shape[1] // columns, columns).permute(2, 0, 3, 1).contiguous()]


class Unpack(Movement, name="unpack"):
    """The matrix [k, n] that lies in panels [p, q, columns, step], without the zeros."""

    explicit = True

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        x, y = operands[0], results[0]
        if x.rank != 4 or y.rank != 2 or x.dtype != y.dtype or not x.is_static or not y.is_static:
            return f"{x} is no matrix in panels that {y} could be"
        p, q, columns, step = map(int, x.shape)
        k, n = map(int, y.shape)
        fits = columns > 0 and step > 0 and (p, q) == (-(-n // columns), -(-k // step))
        return None if fits else f"{y} doesn't lie in {x}"

    def reference(self, args: Args, sizes: Any) -> Args:
        p, q, columns, step = args[0].shape
        k, n = (int(s) for s in from_mlir(self.results[0]).shape)
        return [args[0].permute(1, 3, 0, 2).reshape(q * step, p * columns)[:k, :n]]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        p, q, columns, step = from_mlir(self.operands[0]).shape
        panel, column = em.reindex([idx[1]], [p * columns], [p, columns])
        depth, part = em.reindex([idx[0]], [q * step], [q, step])
        return em.value(self.operands[0], [panel, depth, column, part])
