"""The guards of an exported program (ExportedProgram._guards_code), read as relations between sizes of its inputs."""

from __future__ import annotations

import ast
import math
import operator
import re
from typing import Any

import sympy
import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions as tsf

from dhlo.errors import CompileError
from dhlo.frontend.scalars import SCALAR_FUNCTIONS
from dhlo.ir.symbols import as_expr

__all__ = ["bounds_of", "dim_names", "input_names", "input_values", "only_two", "read_guards"]

_BINARY: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type, Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: dict[str, Any] = {
    "max": torch.sym_max,
    "min": torch.sym_min,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
    "float": torch.sym_float,
    "torch.sym_float": torch.sym_float,
    "torch.sym_int": torch.sym_int,
    "torch.sym_max": torch.sym_max,
    "torch.sym_min": torch.sym_min,
    "int": torch.sym_int,
    "round": round,
    "math.sqrt": math.sqrt,
    "abs": operator.abs,
}


def input_values(ep: Any) -> list[Any]:
    """Example value or constant of every leaf of the input pytree."""
    placeholders = {n.name: n for n in ep.graph.nodes if n.op == "placeholder"}
    return [
        s.arg.value if isinstance(s.arg, ConstantArgument) else placeholders[s.arg.name].meta["val"]
        for s in ep.graph_signature.input_specs
        if s.kind == InputKind.USER_INPUT
    ]


def input_names(ep: Any, values: list[Any]) -> list[str]:
    """A name for every leaf of the input pytree, in order: the parameter and the path below it, such as
    `past[0][1]` or `batch.mask`. `values` are the leaves of the example."""
    positional, keywords = ep.call_spec.in_spec.children()
    signature = ep.module_call_graph[0].signature
    names = [n for n in getattr(signature, "forward_arg_names", None) or [] if n not in keywords.context]
    out: list[str] = []
    for root, i, below in _leaf_paths(ep.call_spec.in_spec, values):
        name = keywords.context[i] if root else names[i] if i < len(names) else f"args_{i}"
        out.append(name + below)
    return out


def _leaf_paths(spec: Any, values: list[Any]) -> list[tuple[int, int, str]]:
    """For every leaf of (args, kwargs): 0 or 1, the child's position there, and the path below as torch writes it."""
    out = []
    for root, group in enumerate(spec.children()):
        for i, child in enumerate(group.children()):
            own, values = values[: child.num_leaves], values[child.num_leaves :]
            try:
                paths = ["".join(map(str, p)) for p, _ in pytree.tree_flatten_with_path(pytree.tree_unflatten(own, child))[0]]
            except Exception:  # a type that can't be made of example values, or whose parts have no names
                paths = []
            if len(paths) != len(own):
                paths = _positions(child)
            out += [(root, i, p) for p in paths]
    return out


def _positions(spec: Any) -> list[str]:
    """Paths of the leaves of a pytree, where parts have no names: by position."""
    if spec.is_leaf():
        return [""]
    return [f"[{i}]{p}" for i, child in enumerate(spec.children()) for p in _positions(child)]


class _Reader:
    """Turns guards' syntax trees into sympy relations. Their parts recur, and cost more to compute than to look up."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs  # source text of an input -> its example (fake) value
        self.known: dict[Any, Any] = {}

    def parse(self, code: str) -> Any:
        """The relation that a guard states. Raises KeyError, SyntaxError or ValueError where it can't be read."""
        return self.read(ast.parse(code.strip(), mode="eval").body)

    def read(self, n: ast.AST) -> Any:
        if isinstance(n, ast.BoolOp):
            return self._call(sympy.And if isinstance(n.op, ast.And) else sympy.Or, *map(self.read, n.values))
        if isinstance(n, ast.Compare):
            values = [self.read(x) for x in (n.left, *n.comparators)]
            steps = zip(n.ops, values, values[1:], strict=False)
            return sympy.And(*[self._call(SCALAR_FUNCTIONS[_COMPARE[type(op)]], a, b) for op, a, b in steps])
        if isinstance(n, ast.BinOp):
            return self._call(SCALAR_FUNCTIONS[_BINARY[type(n.op)]], self.read(n.left), self.read(n.right))
        if isinstance(n, ast.UnaryOp):
            x = self.read(n.operand)
            return sympy.Not(x) if isinstance(n.op, ast.Not) else -x if isinstance(n.op, ast.USub) else x
        if isinstance(n, ast.IfExp):
            return sympy.Piecewise((self.read(n.body), self.read(n.test)), (self.read(n.orelse), True))
        if isinstance(n, ast.Constant):
            return as_expr(n.value)
        name = ast.unparse(n.func) if isinstance(n, ast.Call) else ""
        f = SCALAR_FUNCTIONS[_CALLS[name]] if name in _CALLS else _expression_class(name)
        if f is not None and isinstance(n, ast.Call):
            return self._call(f, *map(self.read, n.args))
        return self._source(n)

    def _call(self, f: Any, *args: Any) -> Any:
        key = (f, *args)
        if key not in self.known:
            self.known[key] = f(*args)
        return self.known[key]

    def _source(self, n: ast.AST) -> Any:
        text = ast.unparse(n)
        if text in self.inputs:
            return as_expr(self.inputs[text])
        if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Call):  # x.size()[d], x.stride()[d]
            what, d = n.value.func, ast.literal_eval(n.slice)
            if isinstance(what, ast.Attribute) and what.attr in ("size", "stride"):
                return as_expr(getattr(self.inputs[ast.unparse(what.value)], what.attr)(d))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "storage_offset":
            return as_expr(0)
        raise KeyError(text)


def _expression_class(name: str) -> Any:
    """The class of expressions of that name, torch's or sympy's; None for other things that these modules hold, which may act."""
    f = getattr(tsf, name, None) or getattr(sympy, name, None)
    return f if isinstance(f, type) and issubclass(f, sympy.Basic) else None


def _sources(names: list[str], values: list[Any]) -> dict[str, Any]:
    """Example values of the inputs by the text that guards call them."""
    inputs: dict[str, Any] = {}
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        head = re.match(r"\w*", name)[0]  # type: ignore[index]
        below = name[len(head) :]
        inputs[f"L['flat_args'][{i}]"] = value  # by strict export
        try:
            inputs[_normal(f"L['{head}']{below}")] = value
        except SyntaxError:  # `layers.0.weight`, say: no guard can be about it
            continue
        variadic = re.fullmatch(r"(\w+)_(\d+)", head)  # one of *args
        if variadic:
            inputs.setdefault(_normal(f"L['{variadic[1]}'][{variadic[2]}]{below}"), value)
    return inputs


def _normal(source: str) -> str:
    return ast.unparse(ast.parse(source, mode="eval"))


def dim_names(names: list[str], values: list[Any]) -> dict[Any, str]:
    """Sizes that the user gave a name (torch.export.Dim), as far as torch's shape environment remembers it."""
    example = next((v for v in values if isinstance(v, torch.Tensor)), None)
    env = getattr(getattr(example, "fake_mode", None), "shape_env", None)
    reader, out = _Reader(_sources(names, values)), {}
    for source, name in getattr(env, "source_name_to_debug_name", {}).items():
        if not name.isidentifier() or name.startswith("_"):
            continue
        try:
            out[reader.parse(source)] = name
        except (KeyError, SyntaxError, ValueError):
            continue
    return out


def read_guards(ep: Any, names: list[str], values: list[Any]) -> list[Any]:
    """The relation of every guard over sizes of the inputs; those on strides say nothing to us and are left out.

    Raises CompileError for one that is about anything else, as a damaged program's may be.
    """
    reader, out = _Reader(_sources(names, values)), []
    for code in dict.fromkeys(ep._guards_code):
        if ".stride()" in code or ".storage_offset()" in code:
            continue
        try:
            out.append(_without_multiples(reader.parse(code)))
        except (KeyError, SyntaxError, ValueError) as e:
            raise CompileError(
                f"can't read the program's guard {code!r} ({e}), which should be about sizes of its inputs; export it again, "
                "in case the file is damaged, and please report it if that doesn't help"
            ) from None
    return out


def _without_multiples(relation: Any) -> Any:
    """`x % (k * x) != 0`, which torch asks where sizes are joined, as what it says unless x is 0: that k isn't 1."""
    if not isinstance(relation, sympy.Ne) or relation.rhs != 0 or not isinstance(relation.lhs, tsf.Mod | tsf.PythonMod):
        return relation
    x, multiple = relation.lhs.args
    k = multiple / x
    return sympy.Ne(k, 1) if k.is_integer else relation


def only_two(relation: Any, ranges: dict[Any, Any], values: list[Any]) -> bool:
    """Does a guard just say that a size was 2 or more, as the example's was? That says nothing about others. `ranges`:
    the program's range_constraints; `values`: its example inputs."""
    if isinstance(relation, sympy.Ne) and relation.lhs.is_Symbol and relation.rhs in (0, 1):
        return any(str(s) == relation.lhs.name and bool(r.lower == 2) for s, r in ranges.items())
    if not isinstance(relation, sympy.Ge | sympy.Le) or relation.lts != 2:
        return False
    sizes = [as_expr(n) for v in values if isinstance(v, torch.Tensor) for n in v.shape]
    return bool(relation.gts.is_Symbol) or relation.gts in sizes


def bounds_of(ep: Any) -> list[Any]:
    """The bounds of a program's symbols, as relations."""
    out = []
    for s, r in ep.range_constraints.items():
        lower, upper = sympy.sympify(r.lower), sympy.sympify(r.upper)
        low = [as_expr(s) >= lower] if lower.is_Integer and lower > 0 else []
        high = [as_expr(s) <= upper] if upper.is_Integer else []
        out += [*low, *high]
    return out
