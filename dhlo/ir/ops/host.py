"""Ops of the planned module that only the host program acts on: the contract, memory, and what happens to arguments and state."""

from typing import Any

import torch

from dhlo.ir.dialect import Arguments, Flag, Ints, Kind, Nested, Number, Op, Out, Tensor, TypeError_, Variadic, attr
from dhlo.ir.mlir import ir
from dhlo.ir.symbols import SYMBOL, parse, symbols_of
from dhlo.ir.types import TensorType

Args = list[torch.Tensor]


class _Statement(Op):
    """An op without results, which the reference semantics need not run."""

    kind = Kind.HOST

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return []


# ------------------------------------------------------------------------------------------------ contract
class CheckType(_Statement, name="check_type"):
    """Fails the call unless argument number `input` has the rank and the element type of the operand's type."""

    x: Tensor
    input: ir.IntegerAttr
    name_: ir.StringAttr


class _OfDim(Op):
    """An op that defines a symbol by a dim of an argument."""

    kind = Kind.SYMBOL
    takes_bits = True

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if not 0 <= attrs["dim"] < operands[0].rank or not SYMBOL.fullmatch(attrs["symbol"]):
            raise TypeError_(f"no dim {attrs['dim']} of {operands[0]} can be named {attrs['symbol']!r}")
        return []


class Size(_OfDim, name="size"):
    """Defines `symbol` as the size of dim `dim` of an argument, as the call gives it."""

    x: Tensor
    dim: ir.IntegerAttr
    symbol: ir.StringAttr


class Capacity(_OfDim, name="capacity"):
    """Defines `symbol` as the room that an argument's buffer has along dim `dim`, by the strides that the call gives."""

    x: Tensor
    dim: ir.IntegerAttr
    symbol: ir.StringAttr


class Solve(_Statement, name="solve"):
    """Gives a symbol of the arguments' types its value."""

    unknown: ir.StringAttr
    value: Number


class Check(_Statement, name="check"):
    """Fails the call with `text`, about argument `input` (-1: none), unless `got` is equal to `expected`, at least it (min) or at
    most it (max)."""

    expected: Number
    got: Number
    how: ir.StringAttr
    input: ir.IntegerAttr
    text: ir.StringAttr

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if attrs["how"] not in ("equal", "min", "max"):
            raise TypeError_(f"no check is called {attrs['how']!r}")
        return []


class CheckBuffer(_Statement, name="check_buffer"):
    """Fails the call with `text` unless argument number `input` is the first part, along dim `dim`, of a dense buffer."""

    x: Tensor
    dim: ir.IntegerAttr
    input: ir.IntegerAttr
    text: ir.StringAttr


class Assume(_Statement, name="assume"):
    """Says what the checks before it prove of a symbol: `low` <= symbol <= `high`, either of which may be infinite."""

    of: ir.StringAttr
    low: Number
    high: Number


# ------------------------------------------------------------------------------------------------ arguments and state
class Plan(_Statement, name="plan"):
    """Where a planning call learns the sizes of outputs and how much memory is in use at once, as far as they are known here."""


class Stage(_Statement, name="stage"):
    """An argument that comes with gaps between its elements is copied to dense memory, and read from there, unless they come from
    the strides of the dims `free` alone: other dims lie as dense memory has them beside the dim behind."""

    x: Tensor
    input: ir.IntegerAttr
    free: Ints

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if not set(attrs["free"]) <= set(range(operands[0].rank)):
            raise TypeError_(f"{operands[0]} has no dims {attrs['free']}")
        return []


class Stride(_OfDim, name="stride"):
    """Defines `symbol` as the elements from one index to the next along dim `dim`, a free one, of an argument where it is read:
    as the call gives them, or those of dense memory, where it was copied, has no elements, or the dim at most one index."""

    x: Tensor
    dim: ir.IntegerAttr
    symbol: ir.StringAttr


class UpdateState(_Statement, name="update_state"):
    """The operand becomes the content of a state, unless it was written there already."""

    x: Tensor
    name_: ir.StringAttr


class UpdateArgument(_Statement, name="update_argument"):
    """The operand becomes the content of argument number `input`, unless it was written there already."""

    x: Tensor
    input: ir.IntegerAttr


# ------------------------------------------------------------------------------------------------ memory
class Alloc(_Statement, name="alloc"):
    """A buffer of `bytes` in an arena segment, called `buffer`, in use from the operation with number `first` to that with number
    `last`. A conditional one is of a branch or loop, which may not run."""

    buffer: ir.IntegerAttr
    segment: ir.IntegerAttr
    name_: ir.StringAttr
    bytes: Number
    first: ir.IntegerAttr
    last: ir.IntegerAttr
    conditional: Flag


class Arrange(_Statement, name="arrange"):
    """One way to lay out a segment: by buffer in `order`, the buffers that it lies on. Its offset is the largest end of these."""

    segment: ir.IntegerAttr
    order: Ints
    below: Nested

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        seen: set[int] = set()
        for b, below in zip(attrs["order"], attrs["below"], strict=False):
            if not seen.issuperset(below):
                raise TypeError_(f"buffer {b} lies on one that comes after it")
            seen.add(b)
        if len(attrs["order"]) != len(attrs["below"]) or len(seen) != len(attrs["order"]):
            raise TypeError_("each buffer has one place, and a list of those below it")
        return []


class Arena(_Statement, name="arena"):
    """Asks for the memory of a segment, in the arrangement before it that needs least at these sizes."""

    segment: ir.IntegerAttr


# ------------------------------------------------------------------------------------------------ constants
class Packed(Op, name="packed"):
    """What products keep of the weight `name_`: panels, at byte `offset` of the constants."""

    kind = Kind.WEIGHT
    explicit = True
    name_: ir.StringAttr
    offset: ir.IntegerAttr
    y: Out


# ------------------------------------------------------------------------------------------------ launches
class Address(Op, name="address"):
    """Where a value's memory begins, `offset` bytes further on, as a number."""

    kind = Kind.HOST
    x: Tensor
    offset: Number
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [_ADDRESS]


class Launch(_Statement, name="launch"):
    """Runs `kernel` on items [0, `count`), each of which takes `work` simple operations on elements, on as many threads as this
    pays for, each with `scratch` bytes of its own. Launches behind a group are the group's: a call whose launch fails ends after
    the last of them. `arguments` says what the kernel's argument array holds, 8 bytes each:

        {operand = k}                the address that is operand k
        {buffer = n, offset = "e"}   the address of byte e of arena buffer n
        {constant = n}               the address of byte n of the constants
        {size = "e"}                 a size as i64, or 1 where a relation of sizes holds, else 0
        {far = "e"}                  1 where e bytes, gone through once, are worth asking for ahead, else 0
        {real = "e"}                 a number as f64
        {errors = n}                 the address of the cell where the kernel reports what fails check n
    """

    addresses: Variadic
    kernel: ir.StringAttr
    arguments: Arguments
    count: Number
    work: Number
    scratch: Number

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        for t in operands:
            if t != _ADDRESS:
                raise TypeError_(f"{t} is no address")
        for k in (a["operand"] for a in attrs["arguments"] if "operand" in a):
            if not 0 <= k < len(operands):
                raise TypeError_(f"there is no operand {k}")
        return []

    def mentions(self) -> set[str]:
        texts = [a[what] for a in attr(self, "arguments") for what in ("size", "far", "real", "offset") if what in a]
        return super().mentions() | {s for text in texts for s in symbols_of(parse(text))}


_ADDRESS = TensorType.of("i64", [])


# ------------------------------------------------------------------------------------------------ sizes that depend on data
class _Counts(Op):
    """An op that counts: it defines a symbol."""

    kind = Kind.SYMBOL

    def count(self, args: Args) -> int:
        """The symbol's value."""
        raise NotImplementedError


class CountNonzero(_Counts, name="count_nonzero"):
    """Defines `symbol` as the number of true or non-zero elements."""

    x: Tensor
    symbol: ir.StringAttr

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return []

    def reference(self, args: Args, sizes: Any) -> Args:
        return []

    def count(self, args: Args) -> int:
        return int(args[0].count_nonzero())


class FillNonzero(Op, name="fill_nonzero"):
    """Indices [`number`, rank] (i64) of the true or non-zero elements in row-major order."""

    kind = Kind.SYMBOL
    x: Tensor
    number: Number
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [TensorType.of("i64", [attrs["number"], operands[0].rank])]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [args[0].nonzero()]


class FindUnique(_Counts, name="find_unique"):
    """For each element the index (i64) of its value among the distinct ones; defines `symbol` as their number."""

    x: Tensor
    symbol: ir.StringAttr
    inverse: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [operands[0].with_dtype("i64")]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [torch.unique(args[0], sorted=True, return_inverse=True)[1]]

    def count(self, args: Args) -> int:
        return int(torch.unique(args[0]).numel())


class FillUnique(Op, name="fill_unique"):
    """The distinct values in ascending order, and how often each occurs (i64); `number` of them, as `find_unique` has found."""

    kind = Kind.SYMBOL
    x: Tensor
    inverse: Tensor
    number: Number
    values: Out
    counts: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        n = [attrs["number"]]
        return [operands[0].with_shape(n), TensorType.of("i64", n)]

    def reference(self, args: Args, sizes: Any) -> Args:
        values, _, counts = torch.unique(args[0], sorted=True, return_inverse=True, return_counts=True)
        return [values, counts]


CONTRACT = (CheckType, Size, Capacity, Solve, Check, CheckBuffer, Assume)
"""What a function begins with, once its contract is written out."""
PLACED = (Stage, Stride)
"""What comes then: from where arguments are read."""

__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op) and c.__module__ == __name__] + [
    "CONTRACT",
    "PLACED",
]
