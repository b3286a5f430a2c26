"""Operations that the processes of a group do together. Every process runs those of a program in its order."""

from typing import Any, Protocol

import sympy
import torch

from dhlo.errors import ContractError
from dhlo.ir.dialect import Kind, Op, Out, Sizes, Tensor, TypeError_, attr, result_types
from dhlo.ir.mlir import ir
from dhlo.ir.symbols import FloorDiv, is_static, parse
from dhlo.ir.types import TensorType

REDUCTIONS = ("sum", "product", "max", "min")
"""How elements of several processes become one."""


class Collective(Op):
    """Base of these ops. `group` is the name of a group of processes, `size` how many there are, or 0 if any number is right.

    They are never erased, merged or put in another order: processes that ran others, or in another order, would wait for each
    other.
    """

    kind = Kind.SYMBOL
    what = ""
    """What communicators call the operation."""
    any_size = False
    """Whether the result is of the same type whatever the number of processes."""

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if not attrs["group"] or attrs["size"] < (0 if cls.any_size else 1):
            raise TypeError_(f"{attrs['size']} processes are no group '{attrs['group']}'")
        if attrs.get("how", "sum") not in REDUCTIONS:
            raise TypeError_(f"no reduction is called {attrs['how']!r}")
        if attrs.get("how") in ("max", "min") and operands[0].dtype.is_complex:
            raise TypeError_(f"{operands[0]} has no {attrs['how']}")
        return [cls.result_type(operands[0], attrs)]

    @classmethod
    def result_type(cls, x: TensorType, attrs: dict[str, Any]) -> TensorType:
        """The type of what each process gets."""
        return x

    @property
    def reduction(self) -> str:
        """How it reduces; "" if it doesn't."""
        return attr(self, "how") if "how" in self.attributes else ""

    @property
    def root(self) -> int:
        """The process, by its number in the group, whose tensor all get; -1 if there is none."""
        return int(attr(self, "from_")) if "from_" in self.attributes else -1

    def splits(self, sizes: Any) -> list[list[int]]:
        """How many rows (of dim 0) go to each process and come from each, where that is stated."""
        return []

    def exchange(self, x: torch.Tensor, sizes: Any, world: "World") -> torch.Tensor:
        """Semantics: what this process, one of `world`, gets."""
        (t,) = result_types(self)
        group, size = attr(self, "group"), attr(self, "size")
        if size not in (0, have := world.size(group)):
            raise ContractError(f"process group '{group}' must have {size} processes, not {have}")
        y = torch.empty([sizes(s) for s in t.shape], dtype=x.dtype)
        world.exchange(self.what, group, x.contiguous(), y, how=self.reduction, root=self.root, splits=self.splits(sizes))
        return y


class World(Protocol):
    """What does collective operations: the processes that take part in a run."""

    def size(self, group: str) -> int:
        """How many processes a group has. Raises ContractError if there is no such group."""

    def exchange(
        self, kind: str, group: str, x: torch.Tensor, y: torch.Tensor, *, how: str, root: int, splits: list[list[int]]
    ) -> None:
        """Does an operation (see `Collective.what`) with the processes of a group: fills the dense `y` from the dense
        `x` of all of them."""


class Alone:
    """A world of one process, whatever a group is called."""

    def size(self, group: str) -> int:
        return 1

    def exchange(
        self, kind: str, group: str, x: torch.Tensor, y: torch.Tensor, *, how: str, root: int, splits: list[list[int]]
    ) -> None:
        y.copy_(x.reshape(y.shape))


class AllReduce(Collective, name="all_reduce"):
    """Each element of the result is that of all processes, reduced."""

    what = "all_reduce"
    any_size = True
    x: Tensor
    group: ir.StringAttr
    size: ir.IntegerAttr
    how: ir.StringAttr
    y: Out


class AllGather(Collective, name="all_gather"):
    """The tensors of all processes, one behind the other along dim 0."""

    what = "all_gather"
    x: Tensor
    group: ir.StringAttr
    size: ir.IntegerAttr
    y: Out

    @classmethod
    def result_type(cls, x: TensorType, attrs: dict[str, Any]) -> TensorType:
        rows = _rows(x)
        return x.with_shape([rows * attrs["size"], *x.shape[1:]])


class ReduceScatter(Collective, name="reduce_scatter"):
    """The tensors of all processes reduced; of that each process gets a part, by its number, along dim 0."""

    what = "reduce_scatter"
    x: Tensor
    group: ir.StringAttr
    size: ir.IntegerAttr
    how: ir.StringAttr
    y: Out

    @classmethod
    def result_type(cls, x: TensorType, attrs: dict[str, Any]) -> TensorType:
        rows, size = _rows(x), attrs["size"]
        if is_static(rows) and int(rows) % size:
            raise TypeError_(f"{rows} rows can't be shared evenly by {size} processes")
        return x.with_shape([FloorDiv(rows, size) if size > 1 else rows, *x.shape[1:]])


class AllToAll(Collective, name="all_to_all"):
    """Sends `gives[p]` rows to each process p, in order, and gets `takes[p]` rows from it: those that it sends here."""

    what = "all_to_all"
    x: Tensor
    group: ir.StringAttr
    size: ir.IntegerAttr
    gives: Sizes
    takes: Sizes
    y: Out

    @classmethod
    def result_type(cls, x: TensorType, attrs: dict[str, Any]) -> TensorType:
        _rows(x)
        if not len(attrs["gives"]) == len(attrs["takes"]) == attrs["size"]:
            raise TypeError_(f"there must be as many numbers of rows as processes: {attrs['size']}")
        return x.with_shape([sum((parse(n) for n in attrs["takes"]), sympy.Integer(0)), *x.shape[1:]])

    @property
    def sends(self) -> list[Any]:
        """`gives` as size expressions."""
        return [parse(n) for n in attr(self, "gives")]

    @property
    def receives(self) -> list[Any]:
        """`takes` as size expressions."""
        return [parse(n) for n in attr(self, "takes")]

    @property
    def root(self) -> int:
        """The process, by its number in the group, whose tensor all get; -1 if there is none."""
        return int(attr(self, "from_")) if "from_" in self.attributes else -1

    def splits(self, sizes: Any) -> list[list[int]]:
        return [[sizes(n) for n in self.sends], [sizes(n) for n in self.receives]]


class BroadcastFrom(Collective, name="broadcast_from"):
    """The tensor of process `from_`, by its number in the group."""

    what = "broadcast"
    any_size = True
    x: Tensor
    group: ir.StringAttr
    size: ir.IntegerAttr
    from_: ir.IntegerAttr
    y: Out

    @classmethod
    def result_type(cls, x: TensorType, attrs: dict[str, Any]) -> TensorType:
        if attrs["from_"] < 0 or 0 < attrs["size"] <= attrs["from_"]:
            raise TypeError_(f"there is no process {attrs['from_']} of {attrs['size']}")
        return x


def _rows(x: TensorType) -> Any:
    if x.rank == 0:
        raise TypeError_("a number has no rows")
    return x.shape[0]


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op) and c.__module__ == __name__] + [
    "REDUCTIONS",
    "Alone",
    "World",
]
