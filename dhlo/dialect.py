"""The dhlo dialect: the base class of every op, the shape attribute, and generic building and verification."""

import enum
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import sympy
import torch

from dhlo.errors import InternalError
from dhlo.mlir import ext, ir
from dhlo.shape_infer.symbols import as_expr, is_static, parse, show
from dhlo.types import TensorType, from_mlir

__all__ = ["DHLO", "OPS", "Kind", "Op", "ShapeAttr", "Outs", "Variadic", "attr", "build", "defining", "load", "operand_types",
           "result_types", "to_attr"]


class DHLO(ext.Dialect, name="dhlo"):  # type: ignore[call-arg,misc]
    """Operators over tensors with symbolic shapes; see docs/architecture.md."""


class ShapeAttr(DHLO.Attribute, name="shape"):  # type: ignore[call-arg,misc,name-defined]
    """Tensor encoding that holds the symbolic size of every dim: #dhlo.shape<["batch", "2*seq + 1", "64"]>."""

    dims: ir.ArrayAttr


class Kind(enum.Enum):
    """What passes ask of an op. Everything up to GATHER can be computed element by element where it is used."""

    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    SOURCE = "source"
    GATHER = "gather"
    WEIGHT = "weight"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    WINDOW = "window"
    OPAQUE = "opaque"
    SYMBOL = "symbol"
    CONTROL = "control"
    GROUP = "group"

    @property
    def pullable(self) -> bool:
        """Elements can be computed on demand, so the op may be fused into any consumer."""
        return self in (Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.SOURCE, Kind.GATHER)


if TYPE_CHECKING:  # what the bindings make at run time, for the type checker
    Tensor: TypeAlias = Any
    Out: TypeAlias = Any
    Variadic: TypeAlias = Any
    Outs: TypeAlias = Any

    class OpView:
        OPERATION_NAME: ClassVar[str]
        _ODS_OPERAND_SEGMENTS: ClassVar[list[int] | None]
        _ODS_RESULT_SEGMENTS: ClassVar[list[int] | None]
        operation: Any
        operands: Any
        results: Any
        regions: Any
        attributes: Any
        location: Any

        def __init_subclass__(cls, *, name: str | None = None, traits: list[type] | None = None) -> None: ...
else:
    Tensor = ext.Operand[ir.RankedTensorType]
    Out = ext.Result[ir.RankedTensorType]
    Variadic = Sequence[ext.Operand[ir.RankedTensorType]]
    Outs = Sequence[ext.Result[ir.RankedTensorType]]
    OpView = DHLO.Operation
OPS: dict[str, type["Op"]] = {}


class Op(OpView):
    """Base of all ops. A subclass states its operands, results and attributes as annotations and supplies the hooks:

    kind        what the op is to fusion
    infer       type and shape rule: result types from operand types and attributes (None: the builder states the types)
    check       further conditions on a complete op; returns an error text or None
    reference   semantics, as torch code over concrete tensors; `sizes` evaluates a size expression
    emit        (elementwise) the value of one vector of results from vectors of operands
    pull        (movement, source, gather) how an element of the result is found; see codegen/emit.py
    """

    kind = Kind.OPAQUE
    explicit = False  # result types are given by the builder

    @classmethod
    def __init_subclass__(cls, *, name: str | None = None, traits: list[type] | None = None, **kwargs: Any) -> None:
        if name is not None and traits is None and cls.kind not in (Kind.SYMBOL, Kind.CONTROL, Kind.GROUP):
            traits = [ext.Pure]
        super().__init_subclass__(name=name, traits=traits, **kwargs)
        if name is not None:
            OPS[f"dhlo.{name}"] = cls

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        raise InternalError(f"{cls.OPERATION_NAME} has no type rule")

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        return None

    def reference(self, args: list[torch.Tensor], sizes: Any) -> list[torch.Tensor]:
        raise InternalError(f"{self.OPERATION_NAME} has no reference semantics")

    def verify_invariants(op) -> bool:
        cls = type(op)
        operands, results = operand_types(op), result_types(op)
        attrs = {name: attr(op, name) for name in op.attributes}
        try:
            problem = None
            if not cls.explicit:
                want = cls.infer(operands, attrs)
                if len(want) != len(results) or any(not _same(w, r) for w, r in zip(want, results, strict=True)):
                    problem = f"result type must be {', '.join(map(str, want))}, not {', '.join(map(str, results))}"
            problem = problem or cls.check(operands, results, attrs)
        except TypeError_ as e:
            problem = str(e)
        if problem:
            op.location.emit_error(f"{op.OPERATION_NAME}: {problem}")
            return False
        return True


class TypeError_(Exception):
    """Raised by type rules; becomes a verifier error with the op's location."""


def _same(a: TensorType, b: TensorType) -> bool:
    """Equal up to what can't be decided: two symbolic sizes never contradict each other."""
    return a.dtype == b.dtype and a.rank == b.rank and all(
        x == y or not (is_static(x) and is_static(y)) for x, y in zip(a.shape, b.shape, strict=True))


def defining(v: Any) -> Any:
    """The op (as its class) that makes a value, or None for a block argument."""
    owner = v.owner
    return None if isinstance(owner, ir.Block) else owner.operation.opview


def operand_types(op: Any) -> list[TensorType]:
    return [from_mlir(v) for v in op.operands]


def result_types(op: Any) -> list[TensorType]:
    return [from_mlir(v) for v in op.results]


def to_attr(x: Any) -> Any:
    """Python value to MLIR attribute; size expressions travel as text."""
    if isinstance(x, ir.Attribute):
        return x
    if isinstance(x, bool):
        return ir.BoolAttr.get(x)
    if isinstance(x, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), x)
    if isinstance(x, float):
        return ir.FloatAttr.get(ir.F64Type.get(), x)
    if isinstance(x, str):
        return ir.StringAttr.get(x)
    if isinstance(x, sympy.Basic):
        return ir.StringAttr.get(show(x))
    if isinstance(x, (list, tuple)):
        return ir.ArrayAttr.get([to_attr(i) for i in x])
    raise InternalError(f"no attribute for {x!r}")


def _from_attr(a: Any) -> Any:
    if isinstance(a, (ir.ArrayAttr, ir.DenseI32ArrayAttr)):
        return [_from_attr(i) if isinstance(i, ir.Attribute) else i for i in a]
    return a.value if hasattr(a, "value") else a


def attr(op: Any, name: str) -> Any:
    """An attribute of an op as a Python value."""
    return _from_attr(op.attributes[name])


def build(cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any] | None = None, *,
          results: Sequence[TensorType] | None = None, loc: Any = None, regions: int = 0) -> Any:
    """Creates an op at the current insertion point; result types come from its rule unless the op wants them stated.

    Raises TypeError_ where the operands don't fit together.
    """
    attrs = attrs or {}
    if results is None:
        plain = {k: _from_attr(to_attr(v)) for k, v in attrs.items()}
        results = cls.infer([from_mlir(v) for v in operands], plain)
    plain_attrs = {k: to_attr(v) for k, v in attrs.items()}
    made = [t.mlir() for t in results]
    for name, fields, types in (("operandSegmentSizes", cls._ODS_OPERAND_SEGMENTS, [v.type for v in operands]),
                                ("resultSegmentSizes", cls._ODS_RESULT_SEGMENTS, made)):
        if fields is not None and len(fields) > 1 and all(f == -1 for f in fields):
            plain_attrs[name] = ir.DenseI32ArrayAttr.get(_segments(cls, types, len(fields)))
    op = ir.Operation.create(cls.OPERATION_NAME, results=made, operands=list(operands),
                             attributes=plain_attrs, regions=regions, loc=loc)
    return op.opview if hasattr(op, "opview") else op


def _segments(cls: type[Op], types: Sequence[Any], fields: int) -> list[int]:
    """How many of a list's values each field takes: one, or where there are more values than fields, a run of one type."""
    runs = [1] * len(types)
    if len(types) > fields:
        runs = [len(list(run)) for _, run in itertools.groupby(types)]
    if len(runs) > fields:
        raise InternalError(f"{cls.OPERATION_NAME} takes at most {fields} runs of values of one type, {len(runs)} given")
    return runs + [0] * (fields - len(runs))


def exprs(texts: Sequence[str]) -> list[sympy.Expr]:
    """Size expressions from an attribute's texts."""
    return [parse(t) for t in texts]


def load() -> None:
    """Registers the dialect with the current context."""
    import dhlo.ops  # noqa: F401  (defines the ops)

    DHLO.load()


def equal_shapes(types: Sequence[TensorType], what: str) -> None:
    """Raises TypeError_ unless the shapes agree, as far as can be decided."""
    first = types[0]
    for t in types[1:]:
        if t.rank != first.rank or any(a != b and is_static(a) and is_static(b) for a, b in zip(t.shape, first.shape, strict=True)):
            raise TypeError_(f"{what} have different shapes: {', '.join(map(str, types))}")


def static(x: object) -> int:
    """A size that has to be known at compile time."""
    e = as_expr(x)
    if not is_static(e):
        raise TypeError_(f"size {show(e)} must be static here")
    return int(e)
