"""Random numbers: a draw from the session's generator gives a key, and every element's bits follow from key and position."""

from typing import Any

import torch

from dhlo.ir.dialect import Kind, Op, Out, Tensor, attr
from dhlo.ir.mlir import ir
from dhlo.ir.philox import word
from dhlo.ir.pull import Element, Elements, Position
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]


class RandomKey(Op, name="random_key"):
    """A new key, i64 [seed, number of the draw], each time it runs: the session's seed, and how many draws went before."""

    kind = Kind.SYMBOL
    key: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [TensorType.of("i64", [2])]


class RandomBits(Op, name="random_bits"):
    """32 random bits (i32) an element: word `word` (0 to 3) of the Philox 4x32-10 block whose counter is the element's
    row-major position and the draw, and whose key is the seed."""

    kind = Kind.GATHER
    work = 6
    explicit = True
    key: Tensor
    word: ir.IntegerAttr
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        good = operands[0] == TensorType.of("i64", [2]) and results[0].dtype.name == "i32" and attrs["word"] in range(4)
        return None if good else "random_bits makes i32 of a key i64[2] and a word from 0 to 3"

    def reference(self, args: Args, sizes: Any) -> Args:
        shape = [sizes(s) for s in from_mlir(self.results[0]).shape]
        position = torch.arange(torch.Size(shape).numel()).reshape(shape)
        seed, draw = args[0].tolist()
        return [word(position, seed, draw, attr(self, "word"))]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        position = em.flatten(idx, from_mlir(self.results[0]).shape)
        seed, draw = (em.value(self.operands[0], [em.shift(em.zero, i)]) for i in range(2))
        return em.random_word(position, seed, draw, attr(self, "word"))


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)]
