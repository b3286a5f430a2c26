"""Ops that the host program acts on: data-dependent sizes, assertions, branches, and the fused groups of the planned module."""

# ruff: noqa: E704
from collections.abc import Container
from typing import Any

import torch

from dhlo.ir.dialect import Condition, Kind, Op, Operands, Out, Results, Tensor, TypeError_, attr, result_types, same
from dhlo.ir.mlir import ext, ir
from dhlo.ir.symbols import SYMBOL, is_static, symbol
from dhlo.ir.types import TensorType

Args = list[torch.Tensor]
CONDITION = "{condition}"
"""What `check-contract` replaces in an assertion's message by the condition, as people write it."""


def one_element(t: TensorType) -> None:
    """Raises TypeError_ for tensors that surely have more or fewer elements."""
    if is_static(t.numel) and t.numel != 1:
        raise TypeError_(f"{t} doesn't have one element")


class Item(Op, name="item"):
    """Defines the symbol named by `symbol` as the value of a one-element tensor (aten.item)."""

    kind = Kind.SYMBOL
    x: Tensor
    symbol: ir.StringAttr

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        one_element(operands[0])
        if operands[0].dtype.is_complex or not SYMBOL.fullmatch(attrs["symbol"]):
            raise TypeError_(f"can't name a number of {operands[0]} {attrs['symbol']!r}")
        return []


class Nonzero(Op, name="nonzero"):
    """Indices [n, rank] (i64) of the true or non-zero elements in row-major order; defines the symbol of its first size."""

    kind = Kind.SYMBOL
    explicit = True
    x: Tensor
    symbol: ir.StringAttr
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        good = (
            results[0].rank == 2
            and results[0].shape == (symbol(attrs["symbol"]), operands[0].rank)
            and (results[0].dtype.name == "i64")
        )
        return None if good else "result must be [n, rank of the operand]"

    def reference(self, args: Args, sizes: Any) -> Args:
        return [args[0].nonzero()]


class Assert(Op, name="assert"):
    """Fails the call with `message` unless the condition, a relation of sizes as text, holds. See CONDITION for the message."""

    kind = Kind.SYMBOL
    condition: Condition
    message: ir.StringAttr

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return []


class AssertTensor(Op, name="assert_tensor"):
    """Fails the call with `message` unless the one-element bool tensor is true."""

    kind = Kind.SYMBOL
    x: Tensor
    message: ir.StringAttr

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if operands[0].dtype.name != "i1":
            raise TypeError_("assert_tensor wants a bool")
        one_element(operands[0])
        return []


class Cond(Op, name="cond"):
    """Runs one of two regions as the one-element bool `pred` says; each ends in a `yield` of the results. Regions use values of
    the enclosing function directly."""

    kind = Kind.CONTROL
    explicit = True
    pred: Tensor
    y: Results
    then_: ext.Region
    else_: ext.Region

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        one_element(operands[0])
        return None if operands[0].dtype.is_bool else f"{operands[0]} is no condition"


class While(Op, name="while"):
    """Repeats its second region as long as the first yields true. Both regions take the carried values as block arguments; the
    second yields the next ones, of the same types. Operands are the first values, results the last (higher_order.while_loop)."""

    kind = Kind.CONTROL
    explicit = True
    x: Operands
    y: Results
    cond_: ext.Region
    body: ext.Region

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        good = len(operands) == len(results) and all(map(same, operands, results))
        return None if good else "results must be of the operands' types"


class Yield(Op, name="yield", traits=[ir.IsTerminatorTrait]):
    """Ends a region and gives its results."""

    kind = Kind.CONTROL
    x: Operands

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return []


class Group(Op, name="group"):
    """Ops that run as one kernel launch (or one family's launches), ending in a `yield` of what it stores to memory. `anchor` is
    the kind of the op that shapes its loops. Added by the fusion pass."""

    kind = Kind.GROUP
    explicit = True
    anchor: ir.StringAttr
    y: Results
    body: ext.Region


def yielded(region: Any) -> list[Any]:
    """The values that a region gives."""
    ops = list(region.blocks[0].operations)
    return list(ops[-1].operands)


def new_symbols(op: Any, known: Container[str]) -> list[str]:
    """Symbols that get their value when `op` runs; those in `known` had one before. A branch defines the sizes of its results in
    which its regions differ."""
    if isinstance(op, Cond):
        names = {s.name for t in result_types(op) for e in t.shape for s in e.free_symbols if s.name not in known}
        return sorted(names)
    return [attr(op, "symbol")] if getattr(op, "kind", None) is Kind.SYMBOL and "symbol" in op.attributes else []


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)] + ["new_symbols", "yielded"]
