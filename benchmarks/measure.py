"""Measures workloads on peers, and keeps the results as JSON under benchmarks/results."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.workloads import Shape, Workload
from dhlo.bench.ceilings import Ceilings, machine, measure
from dhlo.bench.peers import PEERS, installed
from dhlo.bench.turns import Request, take_turns

__all__ = ["LIMITS", "RESULTS", "Work", "chosen_peers", "load", "measure_workload", "options", "save", "versions", "work_of"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIMITS = {"x86-64-v3": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
"""By target: environment that makes PyTorch and its libraries use no more instructions than it has."""
# Peers that read the CPU themselves and can't be limited.
_UNLIMITED = ("ort", "openvino", "openvino_static")
# The most often that a pass calls a shape where passes are `even`.
_MOST_REPEATS = 50
_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}  # over the largest magnitude; others: _DEFAULT_TOLERANCE
_DEFAULT_TOLERANCE = 1e-3
_PACKAGES = ("torch", "onnxruntime", "openvino", "transformers")


def options(
    module: str, about: str | None, unit: str, budget: float, peers: Sequence[str] = (), folder: str = "", limited: bool = False
) -> argparse.ArgumentParser:
    """A parser of what benchmarks share. `unit`: what is measured for `budget` seconds; `peers`: those that are, where they are
    installed; `folder`: of results; `limited`: for another target, to which peers are limited, on request."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    if peers:
        here = ",".join(p for p in peers if p in installed())
        parser.add_argument("--peer", default=here, help=f"of {','.join(PEERS)}; by default {here}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=budget, help=f"seconds of timing for each {unit}, after compilation")
    parser.add_argument("--results", type=Path, default=RESULTS / folder, help="where results are kept")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the machinery")
    if limited:
        told = "compile for this target, and limit the peers to the same instructions; those that can't be limited are left out"
        parser.add_argument("--target", choices=sorted(LIMITS), help=told)
    return parser


def chosen_peers(arguments: argparse.Namespace) -> list[str]:
    """The peers that a command's arguments name. With a target their processes will be limited to its instructions, by this one's
    environment; those that can't be are left out."""
    peers: list[str] = arguments.peer.split(",")
    if arguments.target is None:
        return peers
    os.environ.update(LIMITS[arguments.target], DHLO_TARGET=arguments.target)
    return [p for p in peers if p not in _UNLIMITED]


@dataclass
class Work:
    """What each shape of a workload takes at least: flops of products and convolutions (attention's aren't counted),
    and bytes of weights, arguments and results, each moved once."""

    shapes: list[list[int]]
    flops: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _weight_bytes(module: nn.Module, tied_head: bool) -> int:
    """Of embedding tables only a few rows are looked up, unless the output layer reads them."""
    total = _nbytes(list({id(p): p for p in [*module.parameters(), *module.buffers()]}.values()))
    tables = {id(m.weight): m.weight for m in module.modules() if isinstance(m, nn.Embedding)}
    return total if tied_head else total - _nbytes(list(tables.values()))


def work_of(w: Workload, folder: Path) -> tuple[Work, Path]:
    """A workload's work, and the file with its results at every shape, computed by PyTorch in double precision.

    Both are kept in `folder`, and computed again where the shapes have changed.
    """
    facts, results = folder / f"{w.name}.json", folder / f"{w.name}.pt"
    if facts.exists() and results.exists():
        kept = Work(**json.loads(facts.read_text()))
        if kept.shapes == [list(s) for s in w.shapes]:
            return kept, results

    def widen(t: Any) -> Any:
        return t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t

    module = w.module()
    work = Work([list(s) for s in w.shapes])
    weights = _weight_bytes(module, w.tied_head)
    wide = module.double()
    known: dict[Shape, tuple[list[torch.Tensor], int, int]] = {}  # results, flops and bytes; arguments of a shape are the same
    with torch.no_grad():
        for s in dict.fromkeys(w.shapes):
            arguments = w.arguments(s)
            with FlopCounterMode(display=False) as counter:  # in f16 eager takes minutes
                exact = tree_leaves(wide(*tree_map(widen, arguments)))
            given = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]
            sizes = [w.dtype.itemsize if t.is_floating_point() else t.element_size() for t in exact]
            moved = weights + _nbytes(given) + sum(t.numel() * n for t, n in zip(exact, sizes, strict=True))
            known[s] = [t.float() if t.is_floating_point() else t for t in exact], counter.get_total_flops(), moved
    wanted = [known[s][0] for s in w.shapes]
    work.flops, work.bytes = [known[s][1] for s in w.shapes], [known[s][2] for s in w.shapes]
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(wanted, results)
    facts.write_text(json.dumps(asdict(work)))
    return work, results


def versions() -> dict[str, str]:
    """Of Python packages that matter here, as far as they are installed."""
    out = {}
    for name in _PACKAGES:
        try:
            out[name] = metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return out


def _prepare(results: Path) -> None:
    """Makes the folder of results, which git leaves alone."""
    results.mkdir(parents=True, exist_ok=True)
    (results / ".gitignore").write_text("*\n")


def measure_workload(
    w: Workload,
    peers: Sequence[str],
    threads: int,
    *,
    budget: float = 45.0,
    rounds: int = 12,
    timeout: float = 600.0,
    tiny: bool = False,
    results: Path = RESULTS,
    subject: tuple[str, Mapping[str, Any]] | None = None,
    tolerance: float | None = None,
    even: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """One workload on the peers, as JSON values: shapes, work, floors, the machine, and each peer's figures or error.

    `budget` is in seconds, of timing after compilation; `timeout` of compilation. `subject` says how the measuring process makes
    the workload again, where the registry doesn't have it; `tolerance` is that of the workload's type unless it is given. Passes
    that are `even` call short shapes more often than long ones, for about as long in all: the least of a few calls of some
    microseconds would say what else the machine did.
    """
    _prepare(results)
    work, wanted = work_of(w, results / ("references-tiny" if tiny else "references"))
    ceilings: Ceilings = measure(threads)
    dtype = str(w.dtype).removeprefix("torch.")
    floors = _floors(ceilings, work.flops, work.bytes, dtype)
    request = Request(
        *(subject or ("benchmarks.workloads:subject", {"name": w.name, "tiny": tiny})),
        len(w.shapes),
        threads,
        wanted,
        _TOLERANCE.get(w.dtype, _DEFAULT_TOLERANCE) if tolerance is None else tolerance,
        budget,
        rounds,
        timeout,
        _repeats(floors) if even else (),
        ROOT,
    )
    return {
        "workload": w.name,
        "group": w.group,
        "threads": threads,
        "labels": w.labels,
        "dtype": dtype,
        "flops": work.flops,
        "bytes": work.bytes,
        "floor_ms": floors,
        "ceilings": asdict(ceilings),
        "machine": machine(),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "peers": take_turns(request, peers, tell),
    }


def _repeats(floors: Sequence[float]) -> list[int]:
    """How often a pass calls each shape, so that none takes much less than the mean of their floors."""
    mean = sum(floors) / len(floors)
    return [max(1, min(_MOST_REPEATS, int(mean / max(floor, 1e-9)))) for floor in floors]


def save(result: dict[str, Any], results: Path = RESULTS) -> Path:
    """Writes a result, replacing an earlier one of the same workload and thread count."""
    _prepare(results)
    path = results / f"{result['workload']}_t{result['threads']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def load(threads: int, results: Path = RESULTS) -> list[dict[str, Any]]:
    """The kept results for a thread count, by name; floors by the best ceilings that any of them met on its machine, since other
    programs only lower them."""
    kept: list[dict[str, Any]] = [json.loads(p.read_text()) for p in sorted(results.glob(f"*_t{threads}.json"))]
    best: dict[str, dict[str, Any]] = {}
    for r in kept:
        known = best.setdefault(r["machine"], dict(r["ceilings"]))
        known.update({k: max(v, known[k]) for k, v in r["ceilings"].items()})
    for r in kept:
        r["ceilings"] = best[r["machine"]]
        ceilings = Ceilings(**r["ceilings"])
        r["floor_ms"] = _floors(ceilings, r["flops"], r["bytes"], r["dtype"])
    return kept


def _floors(ceilings: Ceilings, flops: Sequence[float], nbytes: Sequence[float], dtype: str) -> list[float]:
    """Milliseconds, by shape."""
    return [1e3 * ceilings.floor_seconds(f, b, dtype) for f, b in zip(flops, nbytes, strict=True)]
