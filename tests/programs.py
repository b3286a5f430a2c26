"""Small dhlo programs built op by op, compiled through the real pipeline and compared with the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dhlo import interp
from dhlo.callspec import CallSpec
from dhlo.compiler import Artifact, compile_program, renumber
from dhlo.frontend.program import InputSpec, Mutation, OutputSpec, Program, Range
from dhlo.ir.context import load
from dhlo.ir.function import bodies, mark_results, set_ranges
from dhlo.ir.mlir import func, ir
from dhlo.ir.symbols import evaluate, parse
from dhlo.ir.types import DTYPES, DType, TensorType
from dhlo.loading import load_artifact
from dhlo.model import CompiledModel
from dhlo.options import Options

Draw = Callable[[DType, list[int], torch.Generator], torch.Tensor]
Env = Mapping[str, int]
SOURCE = "model.py"  # every op stands in this file, on the line of its part


def t(dtype: str, *shape: object) -> TensorType:
    return TensorType.of(dtype, shape)


@dataclass
class Part:
    """Independent computation: arguments (type and where values come from), the ops, and perhaps the same in PyTorch.

    `tol` is the relative tolerance of floats per dtype name; None compares exactly, -0 and NaN included.
    """

    args: Sequence[tuple[TensorType, Draw]]
    body: Callable[..., Sequence[Any]]
    eager: Callable[..., Sequence[torch.Tensor]] | None = None
    tol: Mapping[str, float] | None = None
    atol: float = 0.0
    label: str = ""


@dataclass
class Module:
    """One module of many parts: compiled once, called at any sizes."""

    parts: Sequence[Part]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    line: int = 1
    updates: Mapping[int, str] = field(default_factory=dict)  # result number -> weight whose new content it is

    def __post_init__(self) -> None:
        self.context = ir.Context()
        self.expected: dict[tuple[object, int], list[list[list[torch.Tensor]]]] = {}
        with self.context, ir.Location.unknown():
            load()
            self.module = self._build()

    def _build(self) -> Any:
        types = [ty for p in self.parts for ty, _ in p.args]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            f = func.FuncOp("main", ([x.mlir() for x in types], []))
        block = f.add_entry_block()
        arguments, results, self.counts = list(block.arguments), [], []
        with ir.InsertionPoint(block):
            for k, p in enumerate(self.parts):
                mine, arguments = arguments[: len(p.args)], arguments[len(p.args) :]
                with ir.Location.file(SOURCE, self.line + k, 1):
                    out = list(p.body(*mine))
                self.counts.append(len(out))
                results += out
            func.ReturnOp(results)
        f.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([x.mlir() for x in types], [v.type for v in results]))
        assert module.operation.verify()
        self.results = len(results)
        return module

    def text(self) -> str:
        with self.context:
            return str(self.module)

    def program(self) -> Program:
        """A fresh copy for the compiler, which changes it."""
        with self.context, ir.Location.unknown():
            copy = ir.Module.parse(self.module.operation.get_asm(enable_debug_info=True))
            types = [ty for p in self.parts for ty, _ in p.args]
            names = sorted({s.name for ty in types for e in ty.shape for s in e.free_symbols})
            ranges = {n: self.ranges.get(n, Range(0, None)) for n in names}
            set_ranges(copy, {n: (r.lo, r.hi) for n, r in ranges.items()})
            mark_results(bodies(copy)[0], self.updates)
        return Program(
            self.context,
            copy,
            dict(self.weights),
            [InputSpec(f"x{i}", ty) for i, ty in enumerate(types)],
            [OutputSpec(f"y{i}", i) for i in range(self.results) if i not in self.updates],
            None,
            None,
            ranges,
            mutations=[Mutation("buffer", name, i) for i, name in self.updates.items()],
        )

    def compile(self) -> tuple[CompiledModel, Artifact]:
        program = self.program()
        artifact = compile_program(program, Options())
        renumber(program)
        call = CallSpec(program.inputs, program.outputs, None, None, [])
        return CompiledModel(load_artifact(artifact), {"": call}, artifact), artifact

    def draw(self, env: Env, seed: int) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        return [make(ty.dtype, [evaluate(s, env) for s in ty.shape], g) for p in self.parts for ty, make in p.args]

    def interpret(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with self.context:
            return interp.run(self.module, inputs, self.weights)

    def check(self, model: Callable[..., Any], env: Env, seed: int = 0) -> None:
        """Compares one call with the reference semantics, and with PyTorch where a part says how.

        Inputs have gaps between elements every other time.
        """
        inputs = self.draw(env, seed)
        got = model(*[spread(x) if seed % 2 else x for x in inputs])
        got = [got] if isinstance(got, torch.Tensor) else list(got)
        for p, n, oracles in zip(self.parts, self.counts, self.oracles(env, seed), strict=True):
            mine, inputs = inputs[: len(p.args)], inputs[len(p.args) :]
            results, got = got[:n], got[n:]
            for oracle in oracles:
                for i, (a, b) in enumerate(zip(results, oracle, strict=True)):
                    compare(a, b, p, f"{p.label} result {i} at {dict(env)} (inputs {[list(x.shape) for x in mine]})")

    def oracles(self, env: Env, seed: int) -> list[list[list[torch.Tensor]]]:
        """What each part's results must be, by the reference semantics and by PyTorch; computed once for all runs of a call."""
        key = (tuple(sorted(env.items())), seed)
        if key not in self.expected:
            inputs = self.draw(env, seed)
            want, found = self.interpret(inputs), []
            for p, n in zip(self.parts, self.counts, strict=True):
                mine, inputs = inputs[: len(p.args)], inputs[len(p.args) :]
                found.append([want[:n], *([] if p.eager is None else [list(p.eager(*mine))])])
                want = want[n:]
            self.expected[key] = found
        return self.expected[key]


def compare(a: torch.Tensor, b: torch.Tensor, p: Part, what: str) -> None:
    """Integers and bools exactly; floats exactly or within the part's tolerance."""
    assert a.dtype == b.dtype and a.shape == b.shape, f"{what}: {a.dtype} {list(a.shape)} is not {b.dtype} {list(b.shape)}"
    tol = None if p.tol is None else p.tol.get(dtype_name(a.dtype))
    if (
        a.dtype == torch.bfloat16
    ):  # the processor's conversion flushes what is below the smallest normal number, and so does PyTorch at times
        a, b = (torch.where(x.abs() <= 2 * torch.finfo(x.dtype).tiny, x * 0, x) for x in (a, b))
    if a.is_floating_point():
        same = (a == b) & (a.signbit() == b.signbit()) if tol is None else (a == b) | ((a - b).abs() <= p.atol + tol * b.abs())
        same |= a.isnan() & b.isnan()
    else:
        same = a == b
    if not same.all():
        at = (~same).nonzero()[0].tolist()
        values = f"got {a[tuple(at)].item()}, want {b[tuple(at)].item()}"
        raise AssertionError(f"{what}: {a.dtype} at {at}: {values} ({(~same).sum()} of {a.numel()} differ)")


def dtype_name(d: torch.dtype) -> str:
    return next(n for n, x in DTYPES.items() if x.torch == d)


def spread(x: torch.Tensor) -> torch.Tensor:
    """The same tensor with gaps between elements and dims in reversed order."""
    if x.dim() == 0:
        return x
    wide = torch.zeros([2 * s for s in reversed(x.shape)], dtype=x.dtype).permute(*reversed(range(x.dim())))
    view = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    view.copy_(x)
    return view


# ---------------------------------------------------------------------------------------------------- values
def anything(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Ordinary values mixed with the special ones of the dtype: NaN, infinities, zeros, extremes."""
    x = plain(d, shape, g)
    if d.is_bool or not x.numel():
        return x
    if d.is_float:
        info = torch.finfo(d.torch)
        special = [
            float("nan"),
            float("inf"),
            -float("inf"),
            -0.0,
            0.0,
            info.max,
            info.min,
            info.tiny,
            1.0,
            -1.0,
            0.5,
            2.0,
            3.0,
        ]
    else:
        info = torch.iinfo(d.torch)
        special = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, *([-1] if d.name != "ui8" else [])]
    pick = torch.randint(0, len(special), shape, generator=g)
    return torch.where(torch.rand(shape, generator=g) < 0.3, torch.tensor(special, dtype=d.torch)[pick], x)


def moderate(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Like `anything`, but finite floats are neither huge nor tiny."""
    x = anything(d, shape, g)
    if not d.is_float:
        return x
    return torch.where(x.isfinite() & (x != 0) & ((x.abs() > 1e3) | (x.abs() < 1e-3)), torch.full_like(x, 1.5), x)


def plain(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Finite values of moderate size."""
    if d.is_bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if d.is_float:
        return (torch.randn(shape, generator=g, dtype=torch.float64) * 3).to(d.torch)
    return torch.randint(0 if d.name == "ui8" else -20, 21, shape, generator=g).to(d.torch)


def powers(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """1 and -1, and now and then 2 or 1/2: their products are exact."""
    sign = 1 - 2.0 * torch.randint(0, 2, shape, generator=g)
    return (sign * 2.0 ** (torch.randn(shape, generator=g) / 3).round()).to(d.torch)


def mostly_true(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=g) < 0.9


def within(lo: float, hi: float) -> Draw:
    """Uniform values of an interval; integers include both ends."""

    def make(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
        if not d.is_float:
            return torch.randint(int(lo), int(hi) + 1, shape, generator=g).to(d.torch)
        return (torch.rand(shape, generator=g, dtype=torch.float64) * (hi - lo) + lo).to(d.torch)

    return make


def runs_below(n: int) -> Draw:
    """Numbers below n; most follow on the one before, as blocks do that were taken one after the other."""

    def make(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
        follows = torch.rand(shape, generator=g) < 0.7
        x = torch.randint(0, n, shape, generator=g)
        for k in range(1, shape[-1]):
            x[..., k] = torch.where(follows[..., k], (x[..., k - 1] + 1) % n, x[..., k])
        return x.to(d.torch)

    return make


def index_below(size: str) -> Draw:
    """Positions in a dim whose size is an expression of the index's own sizes d0, d1, ...; half count from the end."""

    def make(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
        n = evaluate(parse(size), {f"d{k}": s for k, s in enumerate(shape)})
        if not n or 0 in shape:
            return torch.zeros(shape, dtype=d.torch)
        return torch.randint(0 if d.name == "ui8" else -n, n, shape, generator=g).to(d.torch)

    return make
