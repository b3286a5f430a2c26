"""What every kernel family has: the contract between fused groups, kernels and the host program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import sympy

from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of
from dhlo.ir.dialect import Kind, Op, attr
from dhlo.ir.ops.control import Group
from dhlo.shape_infer.cost import Cost, group_cost

__all__ = ["ChoiceFamily", "Family", "KernelFamily"]


class Family(ABC):
    """One way to compute groups of a kind: an instance serves one group.

    A family is a folder: this class, its variants, packing and cost. `registry.py` lists them all. The constructor says what it
    takes: it raises CompileError where the group's dtypes or sizes have no kernel.
    """

    anchor: ClassVar[str]  # what groups are told by: the kind of the op that shapes them, or "loops",
    ops: ClassVar[tuple[type[Op], ...]] = ()  # and, where a kind has several families, its class
    workspace: sympy.Expr = sympy.Integer(0)
    """Bytes of memory that live during the launches."""
    kernels: Sequence[str] = ()
    """What `emit_kernels` added to the module, or found there, of what can be launched."""

    def __init__(self, low: Lowering, group: Group) -> None:
        self.low, self.group = low, group

    @classmethod
    def name(cls) -> str:
        """What the planned module calls it."""
        return cls.__name__.removesuffix("Family").lower()

    @classmethod
    def matches(cls, group: Group) -> bool:
        """Whether the family is the one for a fused group."""
        if attr(group, "anchor") != cls.anchor:
            return False
        return not cls.ops or isinstance(anchor_of(group, Kind(cls.anchor)), cls.ops)

    @abstractmethod
    def emit_kernels(self) -> None:
        """Adds the kernels that the group may launch to the module, once for all groups that share them; constants and workspace
        are known after it."""

    @abstractmethod
    def launches(self) -> Sequence[Launch] | None:
        """The group's launches in order, which become `dhlo.launch` ops of the planned module; None where it takes a call to know
        them. The memory of the group's results is assigned."""

    def cost(self) -> Cost:
        """Arithmetic and bytes of the group, as expressions of sizes."""
        return group_cost(self.group)


class KernelFamily(Family):
    """A family whose groups are one launch of one kernel, which groups of equal structure share."""

    @abstractmethod
    def lower(self) -> Launch:
        """Emits the kernel of a group and says how it is launched."""

    def emit_kernels(self) -> None:
        self.launch = self.low.once(self.group, "kernel", self.lower)

    def launches(self) -> Sequence[Launch]:
        return [self.launch]


class ChoiceFamily(Family):
    """A family whose groups may choose between kernels at each call, by sizes and facts of the machine, or repeat launches as sizes
    say. That is arithmetic of the host program, which `emit_launch` writes; the planned module lists the kernels."""

    def launches(self) -> Sequence[Launch] | None:
        return None

    @abstractmethod
    def emit_launch(self, host: GroupHost) -> None:
        """Writes size arithmetic, the choice and launches into the host program, of a group whose `launches` aren't known."""
