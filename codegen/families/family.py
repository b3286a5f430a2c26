"""What every kernel family has: the contract between fused groups, kernels and the host program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import sympy

from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of
from dhlo.ir.dialect import Kind, Op, attr
from dhlo.shape_infer.cost import Cost, group_cost

__all__ = ["Family", "LaunchFamily", "launch"]


class Family(ABC):
    """One way to compute groups of a kind: an instance serves one group.

    A family is a folder: this class, its variants, packing and cost. `registry.py` lists them all. The constructor says what it
    takes: it raises CompileError where the group's dtypes or sizes have no kernel.
    """

    anchor: ClassVar[str]  # what groups are told by: the kind of the op that shapes them, or "loops",
    ops: ClassVar[tuple[type[Op], ...]] = ()  # and, where a kind has several families, its class
    workspace: sympy.Expr = sympy.Integer(0)
    """Bytes of memory that live during the launches."""

    def __init__(self, low: Lowering, group: Any) -> None:
        self.low, self.group = low, group

    @classmethod
    def name(cls) -> str:
        """What the planned module calls it."""
        return cls.__name__.removesuffix("Family").lower()

    @classmethod
    def matches(cls, group: Any) -> bool:
        """Whether the family is the one for a fused group."""
        if attr(group, "anchor") != cls.anchor:
            return False
        return not cls.ops or isinstance(anchor_of(group, Kind(cls.anchor)), cls.ops)

    @abstractmethod
    def emit_kernels(self) -> None:
        """Adds the kernels that launches choose from to the module, once for all groups that share them; constants and workspace
        are known after it."""

    @abstractmethod
    def emit_launch(self, host: GroupHost) -> None:
        """Writes size arithmetic, the choice of a variant and launches into the host program."""

    def cost(self) -> Cost:
        """Arithmetic and bytes of the group, as expressions of sizes."""
        return group_cost(self.group)


class LaunchFamily(Family):
    """A family whose groups are one launch of one kernel."""

    @abstractmethod
    def lower(self) -> Launch:
        """Emits the kernel of a group and says how it is launched."""

    def emit_kernels(self) -> None:
        self.launch = self.low.once(self.group, "kernel", self.lower)

    def emit_launch(self, host: GroupHost) -> None:
        launch(host, self.launch)


def launch(host: GroupHost, x: Launch) -> None:
    """One launch with sizes as expressions."""
    host.launch(x.kernel, [host.slot(s) for s in x.slots], host.size(x.count), host.size(x.grain), host.size(x.scratch))
