"""Random PyTorch functions over two symbolic sizes, as source text: what the fuzzer compiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sympy

__all__ = ["Draw", "M", "N", "Program", "Value", "generate"]

T = TypeVar("T")
Draw = Callable[[Sequence[T]], T]  # picks one

N, M = sympy.symbols("n m", integer=True, nonnegative=True)
FLOATS, INTS = ("float32", "bfloat16"), ("int64", "int32")


@dataclass(frozen=True)
class Value:
    """A variable: sizes as expressions of n and m (or names of their own where only data decides), and how far it may be
    trusted: `depth` counts roundings (None: it is exact)."""

    name: str
    dtype: str
    dims: tuple[sympy.Expr, ...]
    depth: int | None = None
    coarse: bool = False  # rounded to bfloat16 on the way, or not, as the compiler likes

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass
class Program:
    """A function's source, its arguments (dtype and sizes) and its results."""

    arguments: list[Value]
    lines: list[str] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)

    @property
    def source(self) -> str:
        names = ", ".join(v.name for v in self.arguments)
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def f({names}):\n{body}\n    return {', '.join(v.name for v in self.results)},\n"


class _Maker:
    """Appends statements; each picks operands among the values so far and adds one value."""

    def __init__(self, draw: Draw[Any]) -> None:
        self.draw, self.fresh = draw, 0
        shapes = [(N, M), (M,), (N, sympy.Integer(3), M), (sympy.Integer(4), N), (), (N,), (M, N), (N, sympy.Integer(8))]
        chosen = [(N, M), (sympy.Integer(3), M), draw(shapes), draw(shapes)]
        dtypes = ["float32", draw([*FLOATS, *INTS]), draw([*FLOATS, "bool"]), draw(["int64", "float32"])]
        self.values = [Value(f"a{k}", d, s) for k, (d, s) in enumerate(zip(dtypes, chosen, strict=True))]
        self.positions = Value("at", "int64", (sympy.Integer(2),))  # in [0, 3)
        self.program = Program([*self.values, self.positions])

    # ------------------------------------------------------------------ helpers
    def emit(self, text: str, dtype: str, dims: Sequence[Any], depth: int | None) -> Value:
        name = f"v{len(self.program.lines)}"
        self.program.lines.append(f"{name} = {text}")
        read = set(re.findall(r"\b[av]\d+\b", text))
        coarse = dtype == "bfloat16" or any(v.coarse for v in self.values if v.name in read)
        value = Value(name, dtype, tuple(map(sympy.sympify, dims)), depth, coarse)
        if value.rank <= 4:
            self.values.append(value)
        return value

    def pick(self, ok: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """A value, recent ones rather than old ones."""
        found = [v for v in self.values if ok(v)]
        recent = found[-5:]
        return self.draw([*recent, *found]) if found else None

    @staticmethod
    def rounded(*vs: Value, more: int = 1) -> int:
        return max(v.depth or 0 for v in vs) + more

    def squash(self, text: str, dtype: str, dims: Sequence[Any], depth: int) -> Value:
        """Keeps floats small, so that errors stay small."""
        if dtype in FLOATS:
            return self.emit(f"torch.tanh({text})", dtype, dims, depth)
        return self.emit(f"({text}) % 17", dtype, dims, None)

    # ------------------------------------------------------------------ elementwise
    def unary(self) -> None:
        x = self.pick(lambda v: v.dtype != "bool")
        if x is None:
            return
        if x.is_float:
            op = self.draw(
                ["tanh({})", "sin({})", "sigmoid({})", "exp(-{}.abs())", "log1p({}.abs())", "erf({})", "rsqrt({}.abs() + 1)"]
            )
            self.emit("torch." + op.format(x.name), x.dtype, x.dims, self.rounded(x))
        else:
            self.emit(self.draw(["-{}", "{}.abs()", "~{}", "{} << 1"]).format(x.name), x.dtype, x.dims, None)

    def exact_unary(self) -> None:
        x = self.pick(lambda v: v.dtype != "bool")
        if x is not None:
            op = self.draw(["-{}", "{}.abs()", "{}.clamp(-1, 2)", "torch.relu({})"])
            self.emit(op.format(x.name), x.dtype, x.dims, x.depth)

    def binary(self) -> None:
        x = self.pick()
        y = self.pick(lambda v: x is not None and _broadcasts(v.dims, x.dims))
        if x is None or y is None:
            return
        dtype = _promote(x, y)
        if dtype == "bool":
            self.emit(f"{x.name} {self.draw(['&', '|', '^'])} {y.name}", "bool", x.dims, None)
            return
        op = self.draw(["{} + {}", "{} * {}", "torch.maximum({}, {})", "torch.where({} > 0, {}, 1)"])
        if op.startswith("torch.where") and (x.depth is not None or x.dtype == "bool" or y.dtype == "bool"):
            op = "{} + {}"
        if op.startswith("torch.where"):
            self.emit(op.format(x.name, y.name), y.dtype if y.dtype != "bool" else "int64", x.dims, y.depth)
        else:
            self.squash(op.format(x.name, y.name), dtype, x.dims, self.rounded(x, y, more=2))

    def compare(self) -> None:
        x = self.pick(lambda v: v.depth is None and v.dtype != "bool")
        if x is not None:
            op = self.draw(["{0} > 0", "{0} <= 1", "{0} != 0", "({0} * 2).floor() == 1" if x.is_float else "{0} % 3 == 1"])
            self.emit(op.format(x.name), "bool", x.dims, None)

    def cast(self) -> None:
        x = self.pick()
        if x is None:
            return
        to = self.draw([d for d in (*FLOATS, *INTS, "bool") if d != x.dtype])
        if x.depth is not None and to not in FLOATS:
            return
        self.emit(f"{x.name}.to(torch.{to})", to, x.dims, None if x.depth is None else self.rounded(x))

    # ------------------------------------------------------------------ views and joins
    def permute(self) -> None:
        x = self.pick(lambda v: v.rank > 1)
        if x is not None:
            order = list(range(x.rank))
            for k in range(x.rank - 1):
                j = self.draw(range(k, x.rank))
                order[k], order[j] = order[j], order[k]
            self.emit(f"{x.name}.permute({order})", x.dtype, [x.dims[k] for k in order], x.depth)

    def merge(self) -> None:
        x = self.pick(lambda v: v.rank > 1)
        if x is not None:
            d = self.draw(range(x.rank - 1))
            dims = [*x.dims[:d], x.dims[d] * x.dims[d + 1], *x.dims[d + 2 :]]
            self.emit(f"{x.name}.flatten({d}, {d + 1})", x.dtype, dims, x.depth)

    def split(self) -> None:
        x = self.pick(lambda v: any(s.is_Mul and s.args[0].is_Integer for s in v.dims))
        if x is not None:
            d = next(d for d, s in enumerate(x.dims) if s.is_Mul and s.args[0].is_Integer)
            k = int(x.dims[d].args[0])
            if k <= 0:
                return
            rest = sympy.Mul(*x.dims[d].args[1:])
            if self.draw([True, False]):
                self.emit(f"{x.name}.unflatten({d}, ({k}, -1))", x.dtype, [*x.dims[:d], k, rest, *x.dims[d + 1 :]], x.depth)
            else:
                self.emit(f"{x.name}.unflatten({d}, (-1, {k}))", x.dtype, [*x.dims[:d], rest, k, *x.dims[d + 1 :]], x.depth)

    def unsqueeze(self) -> None:
        x = self.pick(lambda v: v.rank < 4)
        if x is not None:
            d = self.draw(range(x.rank + 1))
            self.emit(f"{x.name}.unsqueeze({d})", x.dtype, [*x.dims[:d], 1, *x.dims[d:]], x.depth)

    def slice(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        if x is None:
            return
        d = self.draw(range(x.rank))
        n, lead, size = x.dims[d], ":, " * d, f"{x.name}.shape[{d}]"
        half = sympy.floor(n / 2)
        part, dims = self.draw([(f": {size} // 2", half), (f"{size} - {size} // 2 :", half), ("::2", n - half), ("1:", None)])
        if dims is None:
            if not (n.is_Integer and n > 1):
                return
            dims = n - 1
        self.emit(f"{x.name}[{lead}{part}]", x.dtype, [*x.dims[:d], dims, *x.dims[d + 1 :]], x.depth)

    def move(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        if x is not None:
            d = self.draw(range(x.rank))
            op = self.draw([f"{{}}.flip({d})", f"torch.roll({{}}, 1, {d})", f"{{}}.movedim({d}, {d}).contiguous()"])
            self.emit(op.format(x.name), x.dtype, x.dims, x.depth)

    def triangle(self) -> None:
        x = self.pick(lambda v: v.rank > 1)
        if x is not None:
            self.emit(f"{x.name}.{self.draw(['tril', 'triu'])}({self.draw([0, 1, -1])})", x.dtype, x.dims, x.depth)

    def pad(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype != "bool")
        if x is not None:
            lo, hi = self.draw([0, 1, 3]), self.draw([0, 2])
            dims = [*x.dims[:-1], x.dims[-1] + lo + hi]
            self.emit(f"F.pad({x.name}, ({lo}, {hi}), value=1)", x.dtype, dims, x.depth)

    def join(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        if x is None:
            return
        y = self.pick(lambda v: v.dims == x.dims and v.dtype == x.dtype)
        assert y is not None
        d = self.draw(range(x.rank))
        depth = None if x.depth is None and y.depth is None else self.rounded(x, y, more=0)
        if self.draw([True, False]):
            dims = [*x.dims[:d], 2 * x.dims[d], *x.dims[d + 1 :]]
            self.emit(f"torch.cat([{x.name}, {y.name}], {d})", x.dtype, dims, depth)
        else:
            self.emit(f"torch.stack([{x.name}, {y.name}], {d})", x.dtype, [*x.dims[:d], 2, *x.dims[d:]], depth)

    def expand(self) -> None:
        x = self.pick(lambda v: v.rank < 3)
        if x is not None:
            size, dim = self.draw([("a0.shape[0]", N), ("a0.shape[1]", M), ("2", sympy.Integer(2))])
            self.emit(f"{x.name}.expand({size}, {', '.join(['-1'] * x.rank)})", x.dtype, [dim, *x.dims], x.depth)

    # ------------------------------------------------------------------ indexing
    def lookup(self) -> None:
        x = self.pick(lambda v: any(s.is_Integer and s >= 3 for s in v.dims))
        if x is not None:
            d = next(d for d, s in enumerate(x.dims) if s.is_Integer and s >= 3)
            op = self.draw([f"{{}}.index_select({d}, at)", f"{{}}[{':, ' * d}at]"])
            self.emit(op.format(x.name), x.dtype, [*x.dims[:d], 2, *x.dims[d + 1 :]], x.depth)

    def write(self) -> None:
        x = self.pick(lambda v: any(s.is_Integer and s >= 3 for s in v.dims) and v.dtype != "bool")
        if x is not None:
            d = next(d for d, s in enumerate(x.dims) if s.is_Integer and s >= 3)
            op = self.draw(["{0}.index_fill({1}, at, 2)", "{0}.index_add({1}, at, {0}.narrow({1}, 0, 2))"])
            self.emit(op.format(x.name, d), x.dtype, x.dims, x.depth if "fill" in op or x.dtype in INTS else self.rounded(x))

    def in_place(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype != "bool")
        if x is None:
            return
        d = self.draw(range(x.rank))
        y = self.emit(f"{x.name}.clone()", x.dtype, x.dims, self.rounded(x) if x.is_float else None)
        lead = ":, " * d
        views = [f"{y.name}[{lead}: {y.name}.shape[{d}] // 2]", f"{y.name}.transpose(0, {d})", f"{y.name}[{lead}::2]"]
        part = self.draw(views)
        self.program.lines.append(f"{part}.{self.draw(['add_(1)', 'mul_(2)', 'zero_()', 'copy_(' + part + ' * 2)'])}")

    def ordered(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.depth is None and v.dtype != "bool")
        if x is None:
            return
        d = self.draw(range(x.rank))
        way = self.draw(["sort", "argsort", "topk", "gather", "cummax"])
        if way == "sort":
            self.emit(f"{x.name}.sort({d}, descending={self.draw([True, False])}).values", x.dtype, x.dims, None)
        elif way == "cummax":
            self.emit(f"{x.name}.cummax({d}).values", x.dtype, x.dims, None)
        elif way == "topk":
            if x.dims[d].is_Integer and x.dims[d] >= 2:
                self.emit(f"{x.name}.topk(2, {d}).values", x.dtype, [*x.dims[:d], 2, *x.dims[d + 1 :]], None)
        else:
            order = self.emit(f"{x.name}.argsort({d}, stable=True)", "int64", x.dims, None)
            if way == "gather":
                self.emit(f"{x.name}.gather({d}, {order.name})", x.dtype, x.dims, None)

    def select(self) -> None:
        """Sizes that only data decides."""
        x = self.pick(lambda v: v.rank > 0 and v.depth is None)
        if x is None or self.fresh >= 2:
            return
        self.fresh += 1
        u = sympy.Symbol(f"u{self.fresh}", integer=True, nonnegative=True)
        mask = x.name if x.dtype == "bool" else f"({x.name} > 0)"
        if self.draw([True, False]):
            self.emit(f"{mask}.nonzero()", "int64", [u, x.rank], None)
        else:
            self.emit(f"{x.name}[{mask}]", x.dtype, [u], None)

    # ------------------------------------------------------------------ many elements
    def reduce(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        if x is None:
            return
        d, keep = self.draw(range(x.rank)), self.draw([True, False])
        dims = [*x.dims[:d], *([1] if keep else []), *x.dims[d + 1 :]]
        tail = f"({d}, keepdim={keep})"
        if x.dtype == "bool":
            op = self.draw(["any", "all", "sum"])
            self.emit(f"{x.name}.{op}{tail}", "int64" if op == "sum" else "bool", dims, None)
        elif not x.is_float:
            op = self.draw(["sum", "amax", "amin"])
            self.emit(f"{x.name}.{op}{tail}", "int64" if op == "sum" else x.dtype, dims, None)
        else:
            op = self.draw(["sum", "mean", "amax", "amin", "logsumexp", "argmax"])
            if op == "argmax":
                if x.depth is None:
                    self.emit(f"{x.name}.argmax{tail}", "int64", dims, None)
            elif op in ("amax", "amin"):
                self.emit(f"{x.name}.{op}{tail}", x.dtype, dims, x.depth)
            else:
                self.squash(f"{x.name}.{op}{tail} * 0.1", x.dtype, dims, self.rounded(x, more=3))

    def norm(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.is_float)
        if x is not None:
            d = self.draw(range(x.rank))
            op = self.draw(
                [
                    f"torch.softmax({{0}}, {d})",
                    "F.layer_norm({0}, {0}.shape[-1:])",
                    "F.normalize({0}, dim=-1) * 0.5",
                    f"torch.log_softmax({{0}}, {d}) * 0.1",
                ]
            )
            grows = 8 if "norm" in op else 2
            self.emit(op.format(x.name), x.dtype, x.dims, self.rounded(x, more=grows))

    def product(self) -> None:
        x = self.pick(lambda v: 2 <= v.rank <= 3 and v.is_float)
        if x is not None:
            way = self.draw(["{0} @ {0}.mT", "{0}.mT @ {0}", "{0}.softmax(-1) @ torch.ones_like({0}).mT"])
            k = x.dims[-1] if way.startswith("{0}.mT") else x.dims[-2]
            dims = [*x.dims[:-2], k, k]
            self.squash(f"({way.format(x.name)}) * 0.1", x.dtype, dims, self.rounded(x, more=4))

    def running(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype != "bool" and v.dtype != "bfloat16")
        if x is not None:
            d = self.draw(range(x.rank))
            if x.is_float:
                self.squash(f"{x.name}.cumsum({d}) * 0.1", x.dtype, x.dims, self.rounded(x, more=4))
            else:
                self.emit(f"{x.name}.cumsum({d}) % 13", "int64", x.dims, None)


def _promote(x: Value, y: Value) -> str:
    """PyTorch's result type; 0-dim tensors count less than others of the same or a higher kind."""
    order = ["bool", "int32", "int64", "bfloat16", "float32"]
    if (x.rank == 0) != (y.rank == 0):
        wide, scalar = (x, y) if y.rank == 0 else (y, x)
        if order.index(scalar.dtype) < 3 or wide.is_float:
            if wide.dtype != "bool" and (wide.is_float or not scalar.is_float):
                return wide.dtype
    return max(x.dtype, y.dtype, key=order.index)


def _broadcasts(a: Sequence[sympy.Expr], b: Sequence[sympy.Expr]) -> bool:
    """Does a broadcast to b, whatever the sizes?"""
    return len(a) <= len(b) and all(s in (1, t) for s, t in zip(reversed(a), reversed(b), strict=False))


def generate(draw: Draw[Any], steps: int) -> Program:
    """A program of about `steps` statements; `draw` makes all choices."""
    maker = _Maker(draw)
    names = [
        "unary",
        "exact_unary",
        "binary",
        "binary",
        "binary",
        "compare",
        "cast",
        "permute",
        "merge",
        "split",
        "unsqueeze",
        "slice",
        "move",
        "triangle",
        "pad",
        "join",
        "expand",
        "lookup",
        "write",
        "in_place",
        "ordered",
        "select",
        "reduce",
        "reduce",
        "norm",
        "product",
        "running",
    ]
    for _ in range(steps):
        getattr(maker, draw(names))()
    made = maker.values[len(maker.program.arguments) - 1 :]
    maker.program.results = made[-5:] or maker.values[:1]
    return maker.program
