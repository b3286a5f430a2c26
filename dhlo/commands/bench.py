"""`dhlo bench`: a model beside other compilers at chosen shapes, and where its time goes."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from dhlo import _runtime
from dhlo.api import compile as compile_model
from dhlo.bench.ceilings import cache_bytes, machine, measure, processors
from dhlo.bench.explain import GroupTime, KernelTime, by_kernels, sizes_of, time_groups
from dhlo.bench.peers import PEERS, installed
from dhlo.bench.turns import Request, take_turns
from dhlo.callspec import read_call
from dhlo.commands.accuracy import compare_formats
from dhlo.commands.console import console, print_table
from dhlo.commands.points import Point, Sizes, chosen_points, usual_points
from dhlo.commands.run import generate
from dhlo.commands.shapes import parse_bounds
from dhlo.container import check_apart, write_bytes
from dhlo.errors import ContractError, DhloError
from dhlo.exported import read_program
from dhlo.frontend.guards import input_values
from dhlo.frontend.program import InputSpec
from dhlo.ir.dialect import attr
from dhlo.ir.function import bodies, hints_of, walk
from dhlo.ir.ops.control import Assert
from dhlo.ir.symbols import evaluate, parse, spell, symbol, symbols_of
from dhlo.loading import open_model
from dhlo.options import Options, Range

if TYPE_CHECKING:
    from dhlo._runtime import Value

__all__ = ["bench_file"]

_USUAL = ("eager", "inductor", "ort", "openvino", "dhlo")
_UNHINTED = "dhlo_unhinted"
_THREADS = "DHLO_NUM_THREADS"
_MOST_THREADS = 1024
_TOLERANCE, _NARROW_TOLERANCE = 1e-3, 2e-2  # the second for float types of 16 bits


@dataclass(frozen=True)
class _Model:
    """The model under test: its tensor inputs, the leaves of a call, and how they are nested."""

    path: Path
    values: list[Value]
    leaves: list[InputSpec]
    in_spec: Any
    exported: torch.export.ExportedProgram | None
    native: _runtime.Model | None  # of a model file
    sizes: Sizes

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
    shape_ranges: Sequence[str] = (),
    entry: str | None = None,
    as_json: Path | None = None,
) -> None:
    """Prints times by shape for each peer; on request explains them kernel by kernel, writes what was measured of groups to
    `save_profile`, for reports, draws the times, and writes them as JSON (to standard output, in place of the tables, for "-").
    Shapes are made up where none are given. With formats of weights in `accuracy`, prints what results lose by these instead.

    Raises ContractError for shapes that the model doesn't take, DhloError for peers and formats and entries that there aren't.
    """
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise DhloError("--plot needs matplotlib, which isn't installed (pip install matplotlib)")
    if as_json == Path("-") and explained:
        raise DhloError("--json - prints the figures and nothing else: leave out --explain, or name a file")
    check_apart([as_json, save_profile, plot], [path])
    threads = threads or _usual_threads()
    bounds = parse_bounds(shape_ranges)
    with _thread_count(threads):
        model = _open(path, modules, bounds, entry)
        if accuracy and model.exported is None:
            raise DhloError("--accuracy needs the exported program (.pt2), not a model file")
        made_up = not shapes and not ranges
        points = usual_points(model.values, model.sizes) if made_up else chosen_points(model.values, shapes, ranges)
        if accuracy and model.exported is not None:
            compare_formats(model.exported, [(p.label, *model.arguments(p)) for p in points], accuracy)
            return
        chosen = _choose(peers, model.exported is not None)
        if any(r.opt is not None for r in bounds.values()) and "dhlo" in chosen and _UNHINTED not in chosen:
            chosen.append(_UNHINTED)
        fields = {name: [r.min, r.opt, r.max] for name, r in bounds.items()}
        facts = _compare(model, points, chosen, threads, budget, {"ranges": fields, "entry": entry, "modules": list(modules)})
        title = f"{threads} thread{'s' * (threads > 1)} of {machine()}"
        if as_json is not None:
            _write_json(as_json, model, points, facts, threads)
        if as_json != Path("-"):
            _print_times(points, facts, title)
            _print_hints(model, points, facts)
        if explained or save_profile is not None:
            native = model.native or compile_model(model.exported, shapes=bounds).native
            times = [_explain(native, model.tensors(p), threads) for p in points]
            if explained:
                for p, groups in zip(points, times, strict=True):
                    _print_kernels(p, by_kernels(groups))
            if save_profile is not None:
                write_bytes(save_profile, json.dumps(_profile(native, points, times, threads)).encode())
    if plot is not None:
        _plot(points, facts, plot, f"{path.stem}, {title}", any(":x" in r for r in ranges))
    if "error" in facts.get("dhlo", {}):
        raise DhloError(f"dhlo failed: {facts['dhlo']['error']}")


def _usual_threads() -> int:
    """As many as a process has that names no number: DHLO_NUM_THREADS, or one per processor."""
    text = os.environ.get(_THREADS, "")
    if not text:
        return len(processors())
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_THREADS):
        raise DhloError(f"{_THREADS}: expected a number from 1 to {_MOST_THREADS}, got '{text}'")
    return int(text)


@contextmanager
def _thread_count(threads: int) -> Iterator[None]:
    """Models that are compiled or loaded inside, by this process or others that it starts, have so many threads."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


def _open(path: Path, modules: Sequence[str], bounds: Mapping[str, Range], entry: str | None) -> _Model:
    if path.suffix != ".pt2":
        if bounds:
            raise DhloError("--shape-range needs the exported program (.pt2): a model file was compiled for its bounds")
        return _open_model(path, entry)
    if entry is not None:
        raise DhloError("--entry is for model files: a .pt2 holds one program")
    from dhlo.api import import_programs

    exported = read_program(path, modules)
    program = import_programs({"": exported}, Options(shapes=bounds))[""]
    names = program.user_names
    values: list[Value] = [
        {
            "name": s.name,
            "dtype": s.type.dtype.torch_name,
            "sizes": (),
            "dims": tuple(spell(d, names) for d in s.type.shape),
        }
        for s in program.inputs
        if s.type is not None
    ]
    tensors = [x for s, x in zip(program.inputs, input_values(exported), strict=True) if s.type is not None]
    example = {
        d: int(n.node.hint) if isinstance(n, torch.SymInt) else n
        for v, x in zip(values, tensors, strict=True)
        if isinstance(x, torch.Tensor)
        for d, n in zip(v["dims"], x.shape, strict=True)
        if not isinstance(n, torch.SymInt) or n.node.hint is not None
    }
    with program.context:
        conditions = [parse(attr(op, "condition")) for op in walk(bodies(program.module)[0]) if isinstance(op, Assert)]
        usual = {names.get(n, n): size for n, size in hints_of(program.module).items()}

    def takes(shapes: list[tuple[int, ...]]) -> bool:
        sizes = {parse(d): n for v, shape in zip(values, shapes, strict=True) for d, n in zip(v["dims"], shape, strict=True)}
        sizes |= {symbol(n): sizes[symbol(name)] for n, name in names.items() if symbol(name) in sizes}
        known = {s.name: n for s, n in sizes.items() if s.is_Symbol}
        return all(evaluate(c, known) for c in conditions if symbols_of(c) <= set(known))

    ranges = {names.get(n, n): (r.lo, r.hi) for n, r in program.symbols.items()}
    return _Model(path, values, program.inputs, program.in_spec, exported, None, Sizes(ranges, usual, example, takes))


def _open_model(path: Path, entry: str | None) -> _Model:
    native = open_model(path, entry=entry)
    meta = json.loads(native.metadata)
    call = read_call(meta.get("call"), native.inputs, native.outputs)

    def takes(shapes: list[tuple[int, ...]]) -> bool:
        try:
            native.plan([list(s) for s in shapes])
        except ValueError:
            return False
        return True

    ranges = {n: (low, high) for n, (low, high) in meta["symbols"].items()}
    return _Model(path, native.inputs, call.inputs, call.in_spec, None, native, Sizes(ranges, meta["hints"], {}, takes))


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


# ---------------------------------------------------------------------- measuring
def _compare(
    model: _Model, points: Sequence[Point], peers: Sequence[str], threads: int, budget: float, how: Mapping[str, Any]
) -> dict[str, Any]:
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
            {"program": str(model.path), "arguments": str(inputs), "labels": [p.label for p in points], **how},
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
def _print_times(points: Sequence[Point], facts: dict[str, Any], title: str) -> None:
    ran = [n for n, f in facts.items() if "median_ms" in f]
    others = [n for n in ran if not PEERS[n].ours and n != "dhlo"]

    def cells(i: int) -> list[str]:
        times = {n: facts[n]["median_ms"][i] for n in ran}
        best = min((times[n] for n in others), default=None)
        ratio = [] if "dhlo" not in times or best is None else [f"{best / times['dhlo']:.2f}x"]
        return [points[i].label, *(f"{times[n] * 1e3:.1f}" for n in ran), *ratio]

    head = ["shape", *ran, *(["over the best other"] if "dhlo" in ran and others else [])]
    print_table(
        f"median us, {title}",
        head,
        (cells(i) for i in range(len(points))),
        right=head[1:],
    )
    for n, f in facts.items():
        if "error" in f:
            console().print(f"{n} fails: {f['error']}")
        else:
            console().print(f"{n}: compiled in {f['compile_s']:.1f} s, {f['n']} samples at each shape")


def _print_hints(model: _Model, points: Sequence[Point], facts: dict[str, Any]) -> None:
    """What usual sizes are worth where they hold."""
    ours, plain = (facts.get(n, {}).get("median_ms") for n in ("dhlo", _UNHINTED))
    if ours is None or plain is None:
        return
    for p, a, b in zip(points, ours, plain, strict=True):
        dims = {d: n for v, s in zip(model.values, p.shapes, strict=True) for d, n in zip(v["dims"], s, strict=True)}
        if all(dims.get(n, size) == size for n, size in model.sizes.usual.items()):
            console().print(f"usual sizes ({p.label}): {a / b:.3f} of the time without the hint")


def _write_json(path: Path, model: _Model, points: Sequence[Point], facts: dict[str, Any], threads: int) -> None:
    names = [v["name"] for v in model.values]
    found = {
        "model": str(model.path),
        "machine": machine(),
        "threads": threads,
        "shapes": [{"label": p.label, "inputs": dict(zip(names, map(list, p.shapes), strict=True))} for p in points],
        "peers": facts,
    }
    text = json.dumps(found, indent=1)
    if path == Path("-"):
        print(text)
    else:
        write_bytes(path, (text + "\n").encode())


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


def _plot(points: Sequence[Point], facts: dict[str, Any], path: Path, title: str, doubling: bool) -> None:
    """Latency against the varied size, or against the shapes in order; a line for each peer. `doubling`: sizes grow by factors."""
    import_module("matplotlib").use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 5))
    by_size = all(p.size is not None for p in points)
    x = [p.size if p.size is not None else i for i, p in enumerate(points)] if by_size else list(range(len(points)))
    for name, f in facts.items():
        if "median_ms" in f:
            axes.plot(x, f["median_ms"], marker=".", label=name)
    axes.set_yscale("log")
    axes.set_title(title, fontsize="medium", wrap=True)
    if by_size and doubling:
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, list(map(str, x)))
    axes.set_ylabel("median latency, ms")
    if not by_size:
        axes.set_xticks(x, [p.label for p in points], rotation=45, ha="right")
    axes.set_xlabel(points[0].label.rpartition(", ")[2].partition("=")[0] if by_size else "shape")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
