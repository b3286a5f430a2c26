"""Types of what the MLIR bindings hand out, as far as the compiler uses it; the bindings themselves have none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

__all__ = ["Block", "Module", "Value"]


class Value(Protocol):
    """An SSA value. Equal and of one hash where it is the same value."""

    @property
    def type(self) -> Any: ...
    @property
    def owner(self) -> Any:
        """The operation that makes it, or the block whose argument it is."""
        ...

    @property
    def uses(self) -> Iterable[Any]:
        """Who reads it, each with `owner` and `operand_number`."""
        ...

    def replace_all_uses_with(self, new: Value, /) -> None: ...


class Block(Protocol):
    """A block: its ops end in a terminator."""

    @property
    def arguments(self) -> Sequence[Value]: ...
    @property
    def operations(self) -> Iterable[Any]: ...
    @property
    def owner(self) -> Any:
        """The operation that holds the block in one of its regions."""
        ...


class Module(Protocol):
    """A module; its body holds functions."""

    @property
    def body(self) -> Any: ...
    @property
    def operation(self) -> Any: ...
    @property
    def context(self) -> Any: ...
