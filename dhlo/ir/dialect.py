"""The dhlo dialect: the base class of every op, the shape attribute, and generic building and verification."""

import enum
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import sympy
import torch

from dhlo.errors import InternalError
from dhlo.ir import lists
from dhlo.ir.lists import Operands, Results
from dhlo.ir.mlir import ext, ir
from dhlo.ir.symbols import as_expr, is_static, parse, show
from dhlo.ir.types import TensorType, from_mlir

__all__ = [
    "DHLO",
    "OPS",
    "Arguments",
    "Condition",
    "Flag",
    "Ints",
    "Kind",
    "Nested",
    "Number",
    "Numbers",
    "Op",
    "Operands",
    "Outs",
    "Results",
    "Scalar",
    "ShapeAttr",
    "Sizes",
    "Variadic",
    "attr",
    "build",
    "defining",
    "dims_of",
    "is_size",
    "number",
    "op_class",
    "operand_types",
    "result_types",
    "same",
    "to_attr",
]


class DHLO(ext.Dialect, name="dhlo"):  # type: ignore[call-arg,misc]
    """Operators over tensors with symbolic shapes; see docs/architecture.md."""


class ShapeAttr(DHLO.Attribute, name="shape"):  # type: ignore[call-arg,misc,name-defined]
    """Tensor encoding that holds the symbolic size of every dim: #dhlo.shape<["batch", "2*seq + 1", "64"]>."""

    dims: ir.ArrayAttr


class Flag(ir.IntegerAttr):  # type: ignore[misc]
    """An attribute that is true or false."""


class Ints(ir.ArrayAttr):  # type: ignore[misc]
    """An attribute that is a list of whole numbers."""


class Nested(ir.ArrayAttr):  # type: ignore[misc]
    """An attribute that is a list of lists of whole numbers."""


class Sizes(ir.ArrayAttr):  # type: ignore[misc]
    """An attribute that is a list of size expressions as text."""


class Number(ir.StringAttr):  # type: ignore[misc]
    """An attribute that is a number or a size expression, as text."""


class Numbers(ir.ArrayAttr):  # type: ignore[misc]
    """An attribute that is a list of numbers or size expressions, as text."""


class Scalar(ir.StringAttr):  # type: ignore[misc]
    """An attribute that is an element's value as text: a number, complex or not, a truth or a size expression."""


class Arguments(ir.ArrayAttr):  # type: ignore[misc]
    """An attribute that is a list of what a kernel's argument array holds; see `dhlo.launch`."""


class Condition(ir.StringAttr):  # type: ignore[misc]
    """An attribute that is a relation of sizes as text."""


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
    HOST = "host"

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
        _fields: ClassVar[list[Any]]
        OPERATION_NAME: ClassVar[str]
        stated: ClassVar[dict[str, Any]]
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
    work        rough price of a vector of results computed on demand, operands not counted, in simple operations
    flops       arithmetic that the op has to do at least, as an expression of sizes: a multiply-add of a product is 2, a
                floating-point result of an elementwise op and an element that is reduced is 1
    infer       type and shape rule: result types from operand types and attributes (None: the builder states the types)
    check       further conditions on a complete op; returns an error text or None
    reference   semantics, as torch code over concrete tensors; `sizes` evaluates a size expression
    pull        (movement, source, gather) how an element of the result is found; see dhlo/ir/pull.py
    """

    kind = Kind.OPAQUE
    work = 0
    explicit = False  # result types are given by the builder
    takes_bits = False  # right for ui64, too, whose values are mere bits to all ops that compute
    stated = {}  # of an op with lists: its annotations, each list one of them

    @classmethod
    def __init_subclass__(cls, *, name: str | None = None, traits: list[type] | None = None, **kwargs: Any) -> None:
        stated = dict(cls.__dict__.get("__annotations__", {}))
        if any(what in (Operands, Results) for what in stated.values()):
            cls.stated = stated
            cls.__annotations__ = lists.expand(stated, lists.SHORT)
        if name is not None and traits is None and cls.kind not in (Kind.SYMBOL, Kind.CONTROL, Kind.GROUP, Kind.HOST):
            traits = [ext.Pure]
        super().__init_subclass__(name=name, traits=traits, **kwargs)
        if name is not None:
            OPS[f"dhlo.{name}"] = cls

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        raise InternalError(f"{cls.OPERATION_NAME} has no type rule")

    @classmethod
    def segments(cls, operands: list[TensorType]) -> list[int]:
        """How many values each field of the operands has; empty where the fields say."""
        return []

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        return None

    def reference(self, args: list[torch.Tensor], sizes: Any) -> list[torch.Tensor]:
        raise InternalError(f"{self.OPERATION_NAME} has no reference semantics")

    def flops(self) -> sympy.Expr:
        return sympy.Integer(0)

    def computes(self, k: int) -> bool:
        """Whether its kernel computes operand k by itself, of which it needs each element once: it needn't be in memory then."""
        return False

    def size_attributes(self) -> tuple[str, ...]:
        """The names of its attributes that hold size expressions."""
        cls: Any = type(self)  # mypy takes classes of these bindings for unhashable
        return _size_attributes(cls)

    def mentions(self) -> set[str]:
        """The symbols in the size expressions of its attributes."""
        found: set[str] = set()
        for name in self.size_attributes():
            given = attr(self, name)
            for text in [given] if isinstance(given, str) else given:
                found |= _symbols(text)
        return found

    def verify_invariants(op) -> bool:
        try:
            problem = _malformed(op) or _mistyped(op)
        except (TypeError_, ValueError) as e:  # ValueError: of a type, or of a size expression
            problem = str(e)
        if problem:
            op.location.emit_error(f"{op.OPERATION_NAME}: {problem}")
            return False
        return True


def _mistyped(op: Any) -> str | None:
    """What is wrong with an op's types by its own rules."""
    cls, operands, results = type(op), operand_types(op), result_types(op)
    attrs = {f.name: attr(op, f.name) for f in _fields(cls, cls.OPERATION_NAME)[1]}
    if not cls.explicit:
        want = cls.infer(operands, attrs)
        if len(want) != len(results) or any(not same(w, r) for w, r in zip(want, results, strict=True)):
            return f"result type must be {', '.join(map(str, want))}, not {', '.join(map(str, results))}"
    problem: str | None = cls.check(operands, results, attrs)
    return problem or _of_bits(cls, [*operands, *results])


_COPIES = (Kind.MOVEMENT, Kind.GATHER, Kind.WEIGHT, Kind.CONTROL, Kind.GROUP, Kind.HOST)  # what only moves elements


def _of_bits(cls: type[Op], types: Sequence[TensorType]) -> str | None:
    """Why an op has no right result for its types: registers hold ui64 as i64, so that only its bits are right."""
    if cls.kind in _COPIES or cls.takes_bits or not any(t.dtype.name == "ui64" for t in types):
        return None
    return "there is no arithmetic of uint64: view it as torch.int64"


def _malformed(op: Any) -> str | None:
    """What is wrong with the number of an op's operands, results and regions, and with its attributes; None if nothing is, and
    type rules can be asked. (MLIR tests some of that too, but later.)"""
    operands, attributes, results, regions = _fields(type(op), op.operation.name)
    for what, fields, values in (("operand", operands, op.operands), ("result", results, op.results)):
        sizes = [1] * len(fields)
        if any(f.variadicity != ext.Variadicity.single for f in fields):
            name = f"{what}SegmentSizes"
            if name in op.attributes:
                if not isinstance(op.attributes[name], ir.DenseI32ArrayAttr):
                    return f"{name} must be an array of i32"
                sizes = list(op.attributes[name])
            elif sum(f.variadicity != ext.Variadicity.single for f in fields) == 1:
                sizes = [len(values) - len(fields) + 1 if f.variadicity != ext.Variadicity.single else 1 for f in fields]
            else:
                return f"needs {name}"
            if (
                len(sizes) != len(fields)
                or min(sizes, default=0) < 0
                or any(f.variadicity == ext.Variadicity.single and n != 1 for f, n in zip(fields, sizes, strict=True))
            ):
                return f"{name} doesn't fit the op"
        if sum(sizes) != len(values):
            return f"takes {sum(sizes)} {what}s, not {len(values)}"
    if len(op.regions) != len(regions):
        return f"takes {len(regions)} regions, not {len(op.regions)}"
    for f in attributes:
        if f.name not in op.attributes:
            return f"needs the attribute {f.name}"
        what, good = _FORMS[f.constraint]
        if not good(op.attributes[f.name]):
            return f"{f.name} must be {what}, not {op.attributes[f.name]}"
    return None


def _fields(cls: Any, name: str) -> Any:
    """The fields of a class under one of its names: operands, attributes, results, regions."""
    return _partition(cls, name)  # mypy takes classes of these bindings for unhashable


@functools.cache
def _partition(cls: Any, name: str) -> Any:
    return ext.partition_fields(lists.fields_at(cls, lists.width_of(name)[1]) if cls.stated else cls._fields)


def op_class(name: str) -> type[Op] | None:
    """The class of an op's name, or None if there is no such op."""
    wide = OPS.get(lists.width_of(name)[0])
    return OPS.get(name) or (wide if wide is not None and wide.stated else None)


def _is_int(a: Any) -> bool:
    return isinstance(a, ir.IntegerAttr) and str(a.type) == "i64"


def is_size(a: Any) -> bool:
    """Is an attribute a size expression as text?"""
    return isinstance(a, ir.StringAttr) and isinstance(parse(a.value), sympy.Expr)


def _is_number(a: Any) -> bool:
    return isinstance(a, ir.StringAttr) and (number(a.value) is not None or a.value in ("true", "false") or is_size(a))


def _is_condition(a: Any) -> bool:
    e = parse(a.value) if isinstance(a, ir.StringAttr) else None
    return isinstance(e, sympy.logic.boolalg.Boolean) and not e.is_Symbol


_ARGUMENTS: dict[frozenset[str], Callable[[Any], bool]] = {  # by the keys of a kernel's argument: whether its values are good
    frozenset({"operand"}): lambda a: _is_int(a["operand"]),
    frozenset({"buffer", "offset"}): lambda a: _is_int(a["buffer"]) and is_size(a["offset"]),
    frozenset({"constant"}): lambda a: _is_int(a["constant"]),
    frozenset({"size"}): lambda a: is_size(a["size"]) or _is_condition(a["size"]),
    frozenset({"far"}): lambda a: is_size(a["far"]),
    frozenset({"real"}): lambda a: is_size(a["real"]),
    frozenset({"errors"}): lambda a: _is_int(a["errors"]),
}


def _is_argument(a: Any) -> bool:
    """Is an attribute what a kernel's argument array holds at one place?"""
    if not isinstance(a, ir.DictAttr):
        return False
    good = _ARGUMENTS.get(frozenset(e.name for e in a))
    return good is not None and good(a)


def _every(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda a: isinstance(a, ir.ArrayAttr) and all(map(good, a))


_FORMS: dict[Any, tuple[str, Callable[[Any], bool]]] = {  # by an attribute's class: what it is to users, and whether one is of it
    ir.StringAttr: ("a text", lambda a: isinstance(a, ir.StringAttr)),
    ir.IntegerAttr: ("a whole number", _is_int),
    ir.FloatAttr: ("a number with a point", lambda a: isinstance(a, ir.FloatAttr) and str(a.type) == "f64"),
    Flag: ("true or false", lambda a: isinstance(a, ir.BoolAttr)),
    Ints: ("a list of whole numbers", _every(_is_int)),
    Nested: ("a list of lists of whole numbers", _every(_every(_is_int))),
    Sizes: ("a list of sizes as text", _every(is_size)),
    Number: ("a number or size as text", _is_number),
    Numbers: ("a list of numbers or sizes as text", _every(_is_number)),
    Scalar: ("a text", lambda a: isinstance(a, ir.StringAttr)),  # whether it is a value depends on the dtype
    Condition: ("a relation of sizes as text", _is_condition),
    Arguments: ("a list of a kernel's arguments", _every(_is_argument)),
}
_OF_SIZES = (Sizes, Number, Numbers, Scalar, Condition)


@functools.cache
def _size_attributes(cls: Any) -> tuple[str, ...]:
    """The names of the attributes that hold size expressions."""
    return tuple(f.name for f in _fields(cls, cls.OPERATION_NAME)[1] if f.constraint in _OF_SIZES)


@functools.cache
def _symbols(text: str) -> frozenset[str]:
    """The symbols in the text of a size expression or of a number."""
    try:
        complex(text)
    except ValueError:
        return frozenset(s.name for s in parse(text).free_symbols)
    return frozenset()


def number(text: str) -> float | int | None:
    """The literal value of a number attribute, or None for a size expression."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


class TypeError_(Exception):
    """Raised by type rules; becomes a verifier error with the op's location."""


def same(a: TensorType, b: TensorType) -> bool:
    """Equal up to what can't be decided: two symbolic sizes never contradict each other."""
    return (
        a.dtype == b.dtype
        and a.rank == b.rank
        and all(x == y or not (is_static(x) and is_static(y)) for x, y in zip(a.shape, b.shape, strict=True))
    )


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
    if isinstance(x, dict):
        return ir.DictAttr.get({name: to_attr(i) for name, i in x.items()})
    raise InternalError(f"no attribute for {x!r}")


def _from_attr(a: Any) -> Any:
    if isinstance(a, (ir.ArrayAttr, ir.DenseI32ArrayAttr)):
        return [_from_attr(i) if isinstance(i, ir.Attribute) else i for i in a]
    if isinstance(a, ir.DictAttr):
        return {e.name: _from_attr(e.attr) for e in a}
    return a.value if hasattr(a, "value") else a


def attr(op: Any, name: str) -> Any:
    """An attribute of an op as a Python value."""
    return _from_attr(op.attributes[name])


def build(
    cls: type[Op],
    operands: Sequence[Any],
    attrs: dict[str, Any] | None = None,
    *,
    results: Sequence[TensorType] | None = None,
    loc: Any = None,
    regions: int = 0,
) -> Any:
    """Creates an op at the current insertion point; result types come from its rule unless the op wants them stated.

    Raises TypeError_ where the operands don't fit together.
    """
    attrs = attrs or {}
    if results is None:
        plain = {k: _from_attr(to_attr(v)) for k, v in attrs.items()}
        results = cls.infer([from_mlir(v) for v in operands], plain)
    if unfit := _of_bits(cls, [*map(from_mlir, operands), *results]):
        raise TypeError_(unfit)
    plain_attrs = {k: to_attr(v) for k, v in attrs.items()}
    made = [t.mlir() for t in results]
    name = cls.OPERATION_NAME
    if cls.stated:
        name = lists.define(cls, lists.width_for(max(len(operands), len(made))))
        taken, _, given, _ = _fields(cls, name)
        for what, fields, count in (("operand", taken, len(operands)), ("result", given, len(made))):
            if len(fields) > 1:
                plain_attrs[f"{what}SegmentSizes"] = ir.DenseI32ArrayAttr.get([1] * count + [0] * (len(fields) - count))
    elif sizes := cls.segments([from_mlir(v) for v in operands]):
        plain_attrs["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get(sizes)
    op = ir.Operation.create(name, results=made, operands=list(operands), attributes=plain_attrs, regions=regions, loc=loc)
    return op.opview if hasattr(op, "opview") else op


def exprs(texts: Sequence[str]) -> list[sympy.Expr]:
    """Size expressions from an attribute's texts."""
    return [parse(t) for t in texts]


def equal_shapes(types: Sequence[TensorType], what: str) -> None:
    """Raises TypeError_ unless the shapes agree, as far as can be decided."""
    first = types[0]
    for t in types[1:]:
        if t.rank != first.rank or any(a != b and is_static(a) and is_static(b) for a, b in zip(t.shape, first.shape, strict=True)):
            raise TypeError_(f"{what} have different shapes: {', '.join(map(str, types))}")


def dims_of(dims: Sequence[int], rank: int) -> None:
    """Raises TypeError_ unless these are dims, each named once, of a tensor of that rank."""
    if len(set(dims)) < len(dims) or not all(0 <= d < rank for d in dims):
        raise TypeError_(f"{list(dims)} are not dims of a tensor of rank {rank}")


def static(x: object) -> int:
    """A size that has to be known at compile time."""
    e = as_expr(x)
    if not is_static(e):
        raise TypeError_(f"size {show(e)} must be static here")
    return int(e)
