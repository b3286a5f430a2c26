"""`dhlo bench`: a model beside other compilers at chosen shapes, and where its time goes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from dhlo import _runtime
from dhlo.api import compile as compile_model
from dhlo.api import open_model
from dhlo.bench.ceilings import cache_bytes, machine, measure, processors
from dhlo.bench.explain import GroupTime, KernelTime, by_kernels, sizes_of, time_groups
from dhlo.bench.peers import PEERS, installed
from dhlo.bench.turns import Request, take_turns
from dhlo.callspec import read_call
from dhlo.commands.accuracy import compare_formats
from dhlo.commands.console import console, print_table
from dhlo.commands.run import check_memory, generate
from dhlo.commands.shapes import assignments, complete_shapes, is_size
from dhlo.container import write_bytes
from dhlo.errors import ContractError, DhloError
from dhlo.exported import read_program
from dhlo.frontend.program import InputSpec
from dhlo.ir.symbols import parse, spell

if TYPE_CHECKING:
    from dhlo._runtime import Value

__all__ = ["bench_file", "parse_range"]

_USUAL = ("eager", "inductor", "ort", "openvino", "dhlo")
_MOST_POINTS = 200
_TOLERANCE, _NARROW_TOLERANCE = 1e-3, 2e-2  # the second for float types of 16 bits


@dataclass(frozen=True)
class Point:
    """One shape of every tensor input. `size` is the value of the size that is varied, if one is."""

    label: str
    shapes: list[tuple[int, ...]]
    size: int | None


@dataclass(frozen=True)
class _Model:
    """The model under test: its tensor inputs, the leaves of a call, and how they are nested."""

    path: Path
    values: list[Value]
    leaves: list[InputSpec]
    in_spec: Any
    exported: torch.export.ExportedProgram | None

    def tensors(self, point: Point) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [generate(shape, getattr(torch, v["dtype"]), generator) for v, shape in zip(self.values, point.shapes, strict=True)]

    def arguments(self, point: Point) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest = iter(self.tensors(point))
        numbers: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}
        flat = [
            s.constant if s.type is None else next(rest) if s.scalar is None else numbers[s.scalar](next(rest).item())
            for s in self.leaves
        ]
        if self.in_spec is None:
            return tuple(flat), {}
        args, kwargs = pytree.tree_unflatten(flat, self.in_spec)
        return args, kwargs


def bench_file(
    path: Path,
    *,
    shapes: Sequence[str],
    ranges: Sequence[str],
    peers: Sequence[str],
    threads: int,
    budget: float,
    explained: bool,
    save_profile: Path | None = None,
    plot: Path | None,
    accuracy: Sequence[str],
    modules: Sequence[str],
) -> None:
    """Prints times by shape for each peer; on request explains them kernel by kernel, writes what was measured of groups to
    `save_profile`, for reports, and draws the times. With formats of weights in `accuracy`, prints what results lose by these
    instead.

    Raises ContractError for shapes that the model doesn't take, DhloError for peers and formats that there aren't.
    """
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise DhloError("--plot needs matplotlib, which isn't installed (pip install matplotlib)")
    threads = threads or len(processors())
    os.environ["DHLO_NUM_THREADS"] = str(threads)
    model = _open(path, modules)
    if accuracy and model.exported is None:
        raise DhloError("--accuracy needs the exported program (.pt2), not a model file")
    points = _points(model.values, shapes, ranges)
    if accuracy and model.exported is not None:
        compare_formats(model.exported, [(p.label, *model.arguments(p)) for p in points], accuracy)
        return
    chosen = _choose(peers, model.exported is not None)
    facts = _compare(model, points, chosen, threads, budget)
    _print_times(points, facts, threads)
    if explained or save_profile is not None:
        native = open_model(path, threads) if model.exported is None else compile_model(model.exported).native
        times = [_explain(native, model.tensors(p), threads) for p in points]
        if explained:
            for p, groups in zip(points, times, strict=True):
                _print_kernels(p, by_kernels(groups))
        if save_profile is not None:
            write_bytes(save_profile, json.dumps(_profile(native, points, times, threads)).encode())
    if plot is not None:
        _plot(points, facts, plot)


def _open(path: Path, modules: Sequence[str]) -> _Model:
    if path.suffix != ".pt2":
        native = open_model(path)
        call = read_call(json.loads(native.metadata).get("call"), native.inputs, native.outputs)
        return _Model(path, native.inputs, call.inputs, call.in_spec, None)
    from dhlo.frontend import import_program

    exported = read_program(path, modules)
    program = import_program(exported)
    values: list[Value] = [
        {
            "name": s.name,
            "dtype": s.type.dtype.torch_name,
            "sizes": (),
            "dims": tuple(spell(d, program.user_names) for d in s.type.shape),
        }
        for s in program.inputs
        if s.type is not None
    ]
    return _Model(path, values, program.inputs, program.in_spec, exported)


def _choose(peers: Sequence[str], has_program: bool) -> list[str]:
    """The peers to run. Raises DhloError for those that are unknown, not installed, or need a program."""
    wanted = [n for text in peers for n in text.split(",") if n]
    here = [n for n in installed() if has_program or PEERS[n].from_file]
    if not wanted:
        return [n for n in _USUAL if n in here]
    for n in wanted:
        if n not in PEERS:
            raise DhloError(f"there is no peer '{n}'; peers: {', '.join(PEERS)}")
        if n not in installed():
            raise DhloError(f"peer '{n}' needs packages that aren't installed: {', '.join(PEERS[n].needs)}")
        if n not in here:
            raise DhloError(f"peer '{n}' needs the exported program (.pt2), not a model file")
    return wanted


# ---------------------------------------------------------------------- shapes
def parse_range(text: str) -> tuple[str, list[int]]:
    """`s0=1:512:64` as a name and sizes from 1 to at most 512 in steps of 64 (by default 1), `s0=1:512:x2` by factors.

    Raises ContractError on anything else.
    """
    name, equals, value = text.partition("=")
    low, *rest = value.split(":")
    if not equals or not 1 <= len(rest) <= 2 or not all(map(is_size, (low, rest[0]))):
        raise ContractError(f"'{text}' is not a range: NAME=LOW:HIGH, NAME=LOW:HIGH:STEP or NAME=LOW:HIGH:xFACTOR")
    step = rest[1] if len(rest) == 2 else "1"
    factor = step.startswith("x")
    amount = step.removeprefix("x")
    if not is_size(amount) or int(amount) < (2 if factor else 1) or (factor and int(low) == 0):
        raise ContractError(f"'{text}': a range advances by a positive step, or from 1 on by a factor of at least 2")
    sizes: list[int] = []
    n = int(low)
    while n <= int(rest[0]) and len(sizes) <= _MOST_POINTS:
        sizes.append(n)
        n = n * int(amount) if factor else n + int(amount)
    return name, sizes


def _symbol(name: str, values: Sequence[Value]) -> str:
    """The size symbol that `name` means: itself, or `input.dim`."""
    base, dot, dim = name.rpartition(".")
    for v in values:
        if dot and v["name"] == base and is_size(dim) and int(dim) < len(v["dims"]):
            symbol = v["dims"][int(dim)]
            if not parse(symbol).is_Symbol:
                raise ContractError(f"'{name}' is {symbol}, not a size of its own")
            return symbol
    return name


def _points(values: Sequence[Value], shapes: Sequence[str], ranges: Sequence[str]) -> list[Point]:
    """Every shape combined with every size of the ranges. Raises ContractError where they don't fit the model."""
    parsed = [parse_range(r) for r in ranges]
    count = len(shapes or [""]) * math.prod(len(sizes) for _, sizes in parsed)
    if not 1 <= count <= _MOST_POINTS:
        raise ContractError(f"{count} shapes; from 1 to {_MOST_POINTS} can be measured together")
    out = []
    for text in shapes or [""]:
        fixed = assignments([t for t in text.split(",") if t], values)
        for sizes in itertools.product(*(s for _, s in parsed)):
            varied = {_symbol(n, values): str(size) for (n, _), size in zip(parsed, sizes, strict=True)}
            full = complete_shapes(values, {_symbol(n, values): t for n, t in fixed.items()} | varied)
            dims = [x for v, shape in zip(values, full, strict=True) for x in zip(v["dims"], shape, strict=False)]
            if any(varied.get(d, str(n)) != str(n) for d, n in dims):
                raise ContractError(
                    f"'{text}' fixes a size that --range varies; give the others alone, e.g. {values[0]['name']}.0=2"
                )
            label = [t for t in (text, *(f"{n}={size}" for (n, _), size in zip(parsed, sizes, strict=True))) if t]
            size = sizes[0] if len(parsed) == 1 else None
            check_memory([(shape, getattr(torch, v["dtype"])) for v, shape in zip(values, full, strict=True)])
            out.append(Point(", ".join(label) or "its only shape", full, size))
    return out


# ---------------------------------------------------------------------- measuring
def _compare(model: _Model, points: Sequence[Point], peers: Sequence[str], threads: int, budget: float) -> dict[str, Any]:
    arguments = [model.arguments(p) for p in points]
    with tempfile.TemporaryDirectory(prefix="dhlo-bench-") as folder:
        inputs, reference = Path(folder) / "arguments.pt", None
        torch.save(arguments, inputs)
        tolerance = _TOLERANCE
        if model.exported is not None:
            reference = Path(folder) / "results.pt"
            eager = model.exported.module(check_guards=False)
            with torch.no_grad():
                results = [pytree.tree_leaves(eager(*a, **k)) for a, k in arguments]
            wanted = [[t for t in r if isinstance(t, torch.Tensor)] for r in results]
            torch.save(wanted, reference)
            if any(t.is_floating_point() and t.dtype.itemsize == 2 for r in wanted for t in r):
                tolerance = _NARROW_TOLERANCE
        request = Request(
            "dhlo.bench.subject:from_files",
            {"program": str(model.path), "arguments": str(inputs), "labels": [p.label for p in points]},
            len(points),
            threads,
            reference,
            tolerance,
            budget,
        )
        with console().status("compiling"):
            return take_turns(request, peers)


def _explain(native: _runtime.Model, tensors: list[torch.Tensor], threads: int) -> list[GroupTime]:
    try:
        return time_groups(native, tensors, measure(threads))
    except ValueError as e:
        raise ContractError(str(e)) from None


def _profile(native: _runtime.Model, points: Sequence[Point], times: Sequence[Sequence[GroupTime]], threads: int) -> dict[str, Any]:
    """What reports show of the measured times; see `dhlo.report.page.PROFILE`."""
    rates = asdict(measure(threads))
    return {
        "model": native.name,
        "entry": json.loads(native.metadata)["entry"],
        "level": native.level,
        "machine": machine(),
        "threads": rates.pop("threads"),
        "ceilings": rates,
        "caches": cache_bytes(),
        "points": [
            {"label": p.label, "sizes": sizes_of(native.inputs, p.shapes), "groups": [asdict(g) for g in groups]}
            for p, groups in zip(points, times, strict=True)
        ],
    }


# ---------------------------------------------------------------------- showing
def _print_times(points: Sequence[Point], facts: dict[str, Any], threads: int) -> None:
    ran = [n for n, f in facts.items() if "median_ms" in f]
    others = [n for n in ran if n != "dhlo"]

    def cells(i: int) -> list[str]:
        times = {n: facts[n]["median_ms"][i] for n in ran}
        best = min((times[n] for n in others), default=None)
        ratio = [] if "dhlo" not in times or best is None else [f"{best / times['dhlo']:.2f}x"]
        return [points[i].label, *(f"{times[n] * 1e3:.1f}" for n in ran), *ratio]

    head = ["shape", *ran, *(["over the best other"] if "dhlo" in ran and others else [])]
    print_table(
        f"median us, {threads} thread{'s' * (threads > 1)} of {machine()}",
        head,
        (cells(i) for i in range(len(points))),
        right=head[1:],
    )
    for n, f in facts.items():
        if "error" in f:
            console().print(f"{n} fails: {f['error']}", markup=False)
        else:
            console().print(f"{n}: compiled in {f['compile_s']:.1f} s, {f['n']} samples at each shape", markup=False)
    if "error" in facts.get("dhlo", {}):
        raise DhloError(f"dhlo failed: {facts['dhlo']['error']}")


def _print_kernels(point: Point, rows: Sequence[KernelTime]) -> None:
    everything = sum(r.seconds for r in rows) or 1.0

    def rate(work: float | None, r: KernelTime) -> str:
        return f"{work / r.seconds / 1e9:.1f}" if work and r.seconds else ""

    head = (
        "kernels",
        "launches",
        "us in all",
        "us each",
        "share",
        "GFLOP/s",
        "GB/s",
        "of the ceiling",
        "predicted us",
        "over predicted",
    )
    print_table(
        f"kernels at {point.label}: {everything * 1e6:.1f} us",
        head,
        (
            (
                r.kernels,
                r.launches,
                f"{r.seconds * 1e6:.1f}",
                f"{r.seconds * 1e6 / r.launches:.2f}",
                f"{r.seconds / everything:.1%}",
                rate(r.flops, r),
                rate(r.bytes, r),
                f"{r.floor / r.seconds:.0%}" if r.floor and r.seconds else "",
                f"{r.predicted * 1e6:.1f}" if r.predicted else "",
                f"{r.seconds / r.predicted:.2f}" if r.predicted and r.seconds else "",
            )
            for r in rows
        ),
        right=head[1:],
    )


def _plot(points: Sequence[Point], facts: dict[str, Any], path: Path) -> None:
    """Latency against the varied size, or against the shapes in order; a line for each peer."""
    import_module("matplotlib").use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 5))
    by_size = all(p.size is not None for p in points)
    x = [p.size if p.size is not None else i for i, p in enumerate(points)] if by_size else list(range(len(points)))
    for name, f in facts.items():
        if "median_ms" in f:
            axes.plot(x, f["median_ms"], marker=".", label=name)
    axes.set_yscale("log")
    axes.set_ylabel("median latency, ms")
    if not by_size:
        axes.set_xticks(x, [p.label for p in points], rotation=45, ha="right")
    axes.set_xlabel("size" if by_size else "shape")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
