"""python -m benchmarks.architectures: image models of timm, one or two of each family, beside eager PyTorch.

Each is exported with random weights, its batch and the image's size dynamic where torch.export can do that within a minute, else
its batch alone; compiled; compared with eager PyTorch at other sizes; and timed beside it, on one thread. Each has a process of
its own. Needs timm (`pip install --no-deps timm`; torchvision isn't needed).
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import queue
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.utils._pytree import tree_leaves

import dhlo
from dhlo.bench.worker import scaled_error

__all__ = ["Found", "choose", "examine", "main", "report"]

_EXPORT_SECONDS, _MODEL_SECONDS = 60, 600
_TURNS = 4  # of timing; the least counts
_TOLERANCE = 1e-4  # over the largest magnitude
# Parts of names by how small a model they mean; names of weights that are of no use here.
_SMALL = "atto femto pico nano xxs xx_small xxtiny tiny _t xs mini small _s 18 26 _b0 m1 050".split()
_OTHERS = re.compile("_384|_448|_512|21k|in21|test_|gigantic|giant")
_MANY = 12  # models of a family, from which a second one is taken
_MOST_PARAMETERS = 130_000_000

Shape = tuple[int, ...]


@dataclass
class Found:
    """What became of a model: its dynamic dims; seconds of torch.export and of compiling; by size of the input, the largest
    difference from eager's result, over its largest magnitude, and eager's time over ours; sizes that eager or the exported program
    refuses; why it was left out; and what this compiler got wrong."""

    name: str
    dims: int = 0
    export_s: float = 0.0
    compile_s: float = 0.0
    errors: dict[Shape, float] = field(default_factory=dict)
    ratios: dict[Shape, float] = field(default_factory=dict)
    refused: list[Shape] = field(default_factory=list)
    left_out: str = ""
    faults: list[str] = field(default_factory=list)


def _image(shape: Shape) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _late(*_: Any) -> None:
    raise TimeoutError(f"torch.export took more than {_EXPORT_SECONDS} s")


def _widest(module: nn.Module, side: int, fixed: bool) -> tuple[ExportedProgram, Shape, list[Shape]]:
    """The program with the most dynamic dims, its example's shape, and shapes to try. Raises what torch.export does at last."""
    d = Dim.DYNAMIC
    ways: list[tuple[Shape, dict[int, Any], list[Shape]]] = [((2, 3, side, side), {0: d}, [(3, 3, side, side), (1, 3, side, side)])]
    if not fixed:
        whole = {0: d, 2: d, 3: d}
        ways.insert(0, ((2, 3, side, side), whole, [(3, 3, side, side + 32), (1, 3, side, side)]))
        ways.insert(0, ((2, 3, 96, 128), whole, [(1, 3, 128, 160), (3, 3, 96, 64), (1, 3, 224, 224)]))
    signal.signal(signal.SIGALRM, _late)
    for i, (example, dynamic, others) in enumerate(ways):
        signal.alarm(_EXPORT_SECONDS)
        try:
            return export(module, (_image(example),), dynamic_shapes=(dynamic,)), example, others
        except Exception:  # of any kind: shapes that don't fit the model, sizes that the program fixes, the alarm
            if i == len(ways) - 1:
                raise
        finally:
            signal.alarm(0)
    raise AssertionError


def examine(name: str, make: Callable[[], nn.Module], side: int, fixed: bool = False) -> Found:
    """Exports, compiles, compares and times a model of images of `side` x `side`; `fixed`: of no other size."""
    found = Found(name)
    torch.manual_seed(0)
    module = make().eval().requires_grad_(False)
    with torch.no_grad():
        start = time.monotonic()
        try:
            program, example, others = _widest(module, side, fixed)
        except Exception as e:
            found.left_out = f"torch.export: {str(e).splitlines()[0]}"
            return found
        found.export_s, start = time.monotonic() - start, time.monotonic()
        found.dims = len(program.range_constraints)
        try:
            model = dhlo.compile(program, cache="")
        except dhlo.DhloError as e:
            found.faults.append(str(e))
            return found
        found.compile_s = time.monotonic() - start
        checked = program.module()
        for shape in (example, *others):
            _compare(found, module, checked, model, shape)
    return found


def _takes(module: Callable[..., Any], x: torch.Tensor) -> bool:
    try:
        module(x)
    except Exception:  # what models and guards raise has no type in common
        return False
    return True


def _compare(found: Found, module: nn.Module, checked: Callable[..., Any], model: Any, shape: Shape) -> None:
    """`checked`: the exported program, which says by its guards what it takes."""
    x = _image(shape)
    if not (_takes(module, x) and _takes(checked, x)):
        found.refused.append(shape)
        return
    wanted = tree_leaves(module(x))
    try:
        got = tree_leaves(model(x))
    except dhlo.DhloError as e:
        found.faults.append(f"{_text(shape)}: {e}")
        return
    found.errors[shape] = max(scaled_error(g, w) for g, w in zip(got, wanted, strict=True))
    if not found.errors[shape] <= _TOLERANCE:
        found.faults.append(f"{_text(shape)}: wrong by {found.errors[shape]:.1e}")
    least = [float("inf")] * 2
    for _ in range(_TURNS):
        for i, run in enumerate((module, model)):
            start = time.perf_counter()
            run(x)
            least[i] = min(least[i], time.perf_counter() - start)
    found.ratios[shape] = least[0] / least[1]


def choose(families: Mapping[str, Iterable[str]]) -> list[str]:
    """Of each family the model that its name says is smallest, of large families another one."""
    out = []
    for _, names in sorted(families.items()):
        names = list(names)
        rank = {n: (next((i for i, s in enumerate(_SMALL) if s in n), len(_SMALL)), len(n), n) for n in names}
        ordered = sorted([n for n in names if not _OTHERS.search(n)] or names, key=rank.__getitem__)
        out += [ordered[0], *([ordered[len(ordered) // 3]] if len(ordered) > _MANY else [])]
    return out


def report(found: Sequence[Found]) -> str:
    """A Markdown row for each model, and what they come to."""
    lines = ["| model | dynamic dims | torch.export, s | compiling, s | error | eager over dhlo | |", "|" + " --- |" * 7]
    for f in found:
        ratios = f"{min(f.ratios.values()):.2f} to {max(f.ratios.values()):.2f}" if f.ratios else ""
        error = f"{max(f.errors.values()):.1e}" if f.errors else ""
        refused = [f"refuses {', '.join(map(_text, f.refused))}"] if f.refused else []
        notes = " ".join("; ".join([*f.faults, *([f.left_out] if f.left_out else []), *refused]).split()).replace("|", "/")
        lines.append(f"| {f.name} | {f.dims} | {f.export_s:.1f} | {f.compile_s:.1f} | {error} | {ratios} | {notes} |")
    tried = [f for f in found if not f.left_out]
    every = [r for f in tried for r in f.ratios.values()]
    mean = f"eager over dhlo {statistics.geometric_mean(every):.2f}, least {min(every):.2f}" if every else "nothing was timed"
    faulty = ", ".join(f.name for f in tried if f.faults) or "none"
    lines += ["", f"{len(tried)} of {len(found)} models, {len(every)} sizes: {mean}; faulty: {faulty}."]
    return "\n".join(lines)


# ---------------------------------------------------------------------- timm
class _Absent(ModuleType):
    __path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _timm() -> Any:
    """timm.models, with an empty stand-in for torchvision, of which it wants one class. Raises ImportError without timm."""
    if "timm.models" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        absent = {n: _Absent(n) for n in ("torchvision", "torchvision.ops", "torchvision.ops.misc", "timm.data")}
        vars(absent["torchvision.ops.misc"])["FrozenBatchNorm2d"] = type("FrozenBatchNorm2d", (nn.Module,), {})
        sys.modules.update(absent)
        try:
            return importlib.import_module("timm.models")
        finally:
            for name in absent:
                del sys.modules[name]
    return importlib.import_module("timm.models")


def _examine_named(name: str, threads: int, out: multiprocessing.Queue[Found]) -> None:
    os.environ["DHLO_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    models = _timm()
    with torch.device("meta"):
        outline = models.create_model(name, num_classes=10)
    size = sum(p.numel() for p in outline.parameters())
    if size > _MOST_PARAMETERS:
        out.put(Found(name, left_out=f"{size:,} parameters"))
        return
    settings = outline.default_cfg
    side, fixed = (settings.get("input_size") or (3, 224, 224))[1], bool(settings.get("fixed_input_size"))
    out.put(examine(name, lambda: models.create_model(name, num_classes=10), side, fixed))


def _in_a_process(name: str, threads: int) -> Found:
    spawn = multiprocessing.get_context("spawn")
    out: multiprocessing.Queue[Found] = spawn.Queue()
    process = spawn.Process(target=_examine_named, args=(name, threads, out))
    process.start()
    deadline = time.monotonic() + _MODEL_SECONDS
    while time.monotonic() < deadline:
        alive = process.is_alive()  # before: what it has sent by then is there
        try:
            return out.get(timeout=1)
        except queue.Empty:
            if not alive:
                return Found(name, faults=[f"its process ended with {process.exitcode}"])
    process.kill()
    return Found(name, faults=[f"took more than {_MODEL_SECONDS} s"])


def main() -> int:
    """Exit code 1 if this compiler got something wrong, 2 without timm or for names that it doesn't know."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures", description=__doc__)
    parser.add_argument("names", nargs="*", help="timm's names; by default one or two of each family")
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    try:
        models = _timm()
    except ImportError as e:
        print(f"error: {e}; pip install --no-deps timm", file=sys.stderr)
        return 2
    families = {m: models.list_models(module=m) for m in models.list_modules()}
    if unknown := [n for n in a.names if not models.is_model(n)]:
        print(f"error: timm has no model '{unknown[0]}'", file=sys.stderr)
        return 2
    found = []
    for name in a.names or choose(families):
        print(f"== {name}", file=sys.stderr, flush=True)
        found.append(_in_a_process(name, a.threads))
    print(report(found))
    return int(any(f.faults for f in found))


if __name__ == "__main__":
    sys.exit(main())
