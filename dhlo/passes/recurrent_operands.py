"""What the body of a recurrence takes of a program of a batch: values of which each token has a row, and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import Broadcast, Full, Reshape
from dhlo.ir.places import place_of
from dhlo.ir.types import TensorType, from_mlir
from dhlo.shape_infer.views import reshape_groups

__all__ = ["Operands", "Rows", "clone"]


class Rows:
    """Sizes of values of which each token of a row, the program's batch, has elements of its own. What has no such is said of a
    state, by its name."""

    def __init__(self, batch: sympy.Expr, name: str) -> None:
        self.batch, self.name = batch, name

    def fail(self, op: Any, what: str) -> NoReturn:
        name = getattr(op, "OPERATION_NAME", "the result")
        raise CompileError(f"pages: state '{self.name}': {name} {what}", where=str(place_of(op)) if op is not None else None)

    def one(self, t: TensorType) -> TensorType:
        """The type of what is computed of one token."""
        return t.with_shape([s.xreplace({self.batch: sympy.Integer(1)}) for s in t.shape])

    def numel(self, v: Any) -> int:
        """Elements of a token."""
        n = self.one(from_mlir(v)).numel
        if not n.is_Integer:
            self.fail(defining(v), f"of {from_mlir(v)} has other sizes than that of the batch")
        return int(n)

    def type_of(self, t: TensorType) -> TensorType:
        """The type with a row for each token of a value that has one, or several, for each of the batch."""
        each = t.shape[0] / self.batch if t.rank else self.batch
        if not each.is_Integer or any(s.free_symbols for s in t.shape[1:]):
            raise CompileError(f"pages: of state '{self.name}' comes {t}, whose rows aren't those of the batch")
        return t if each == 1 else t.with_shape([self.batch, each, *t.shape[1:]])


class Operands:
    """What the body of a state takes, as `plan` has decided."""

    def __init__(self, rows: Rows, end: Any) -> None:
        """`end`: the op before which what is taken in fewer elements is computed."""
        self.rows, self.end = rows, end
        self.leaves: dict[Any, bool] = {}
        """What the body takes, and whether it has a row for each token."""
        self.narrowed: dict[Any, Any] = {}
        """By value: what it is a repetition of, which the body takes in its place."""
        self.computed: dict[Any, None] = {}
        """What doesn't depend on the state and is computed in the body nonetheless, being of more elements than its operands."""
        self.varying: dict[Any, frozenset[int]] = {}

    def plan(self, v: Any) -> None:
        """Decides of a value that doesn't depend on the state where it is computed."""
        if v in self.leaves or v in self.narrowed or v in self.computed:
            return
        t, op = from_mlir(v), defining(v)
        if isinstance(op, Full) and op.mentions():
            self.rows.fail(op, "depends on sizes, as on how long the past is")
        of_tokens = t.rank > 0 and t.shape[0] == self.rows.batch and not any(s.free_symbols for s in t.shape[1:])
        if _is_elementwise(op) and (repeated := self._repeated(v)):
            source = self.narrowed[v] = self._narrow(v, repeated)
            self.leaves[source] = bool(from_mlir(source).symbols)
        elif not isinstance(op, (Full, Broadcast)) and (not t.symbols or of_tokens and self._cost(v) >= self.rows.numel(v)):
            self.leaves[v] = of_tokens
        elif op is not None and op.kind.pullable:
            for x in op.operands:
                self.plan(x)
            self.computed[v] = None
        else:
            self.rows.fail(op, f"gives {t}, whose rows aren't those of the batch")

    def _cost(self, v: Any) -> int:
        """Elements that the body reads of a token for a value at least."""
        t, op = from_mlir(v), defining(v)
        if not t.symbols or isinstance(op, Full):
            return 0
        if isinstance(op, Broadcast):
            return self._cost(op.operands[0])
        n = self.rows.numel(v)
        if isinstance(op, Reshape) or _is_elementwise(op):
            repeated = self._repeated(v)
            n = min(n, sum(self._cost(x) for x in op.operands))
            n = min(n, math.prod(int(s) for d, s in enumerate(self.rows.one(t).shape) if d not in repeated))
        return n

    def _repeated(self, v: Any) -> frozenset[int]:
        """Dims of more than one element along which these are equal."""
        return frozenset(d for d, s in enumerate(from_mlir(v).shape) if s != 1) - self._varying(v)

    def _varying(self, v: Any) -> frozenset[int]:
        """Dims along which elements may differ."""
        if v in self.varying:
            return self.varying[v]
        t, op = from_mlir(v), defining(v)
        found = frozenset(d for d, s in enumerate(t.shape) if s != 1)
        if isinstance(op, Full):
            found = frozenset()
        elif isinstance(op, Broadcast):
            dims = attr(op, "dims")
            found = frozenset(dims[d] for d in self._varying(op.operands[0]))
        elif isinstance(op, Reshape):
            inner = self._varying(op.operands[0])
            groups = reshape_groups(from_mlir(op.operands[0]).shape, t.shape)
            found &= frozenset(d for a, b in groups if inner & set(a) for d in b)
        elif _is_elementwise(op):
            found = frozenset().union(*(self._varying(x) for x in op.operands))
        self.varying[v] = found
        return found

    def _narrow(self, v: Any, dims: frozenset[int]) -> Any:
        """One element of a value along dims along which all are equal."""
        t, op = from_mlir(v), defining(v)
        dims = frozenset(d for d in dims if t.shape[d] != 1)
        if not dims:
            return v
        narrow = t.with_shape([1 if d in dims else s for d, s in enumerate(t.shape)])
        if isinstance(op, Reshape):
            groups = reshape_groups(from_mlir(op.operands[0]).shape, t.shape)
            inner = frozenset(d for a, b in groups if dims & set(b) for d in a)
            operands = [self._narrow(op.operands[0], inner)]
        elif isinstance(op, Broadcast):
            operands = [self._narrow(op.operands[0], frozenset(i for i, d in enumerate(attr(op, "dims")) if d in dims))]
        else:
            operands = [self._narrow(x, dims) for x in op.operands] if _is_elementwise(op) else list(op.operands)
        with ir.InsertionPoint(self.end.operation):
            return clone(op, operands, narrow)


def _is_elementwise(op: Any) -> bool:
    return op is not None and op.kind is Kind.ELEMENTWISE


def clone(op: Any, operands: Sequence[Any], t: TensorType) -> Any:
    """The op once more, of other operands, at the current insertion point."""
    made = op.operation.clone()
    for k, v in enumerate(operands):
        made.operands[k] = v
    made.results[0].set_type(t.mlir())
    return made.results[0]
