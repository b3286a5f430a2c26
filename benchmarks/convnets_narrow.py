"""Convolution networks in bf16, f16 or bytes beside f32 by this compiler and beside peers, in turns in one process."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from benchmarks.convnets_bytes import quantised
from benchmarks.workloads import Workload
from dhlo.bench.peers import PEERS, Peer
from dhlo.bench.subject import Subject

__all__ = ["FORMS", "Figures", "compare", "narrow", "peers_of", "row"]

_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
FORMS = (*_DTYPES, "int8")
"""What networks are compared in, by the names of the command line."""
_PEERS = {"int8": {"ort": "ort_bytes", "openvino": "openvino_bytes"}}
_FLOAT_PEERS = {"eager": "eager", "openvino": "openvino"}

# Turns over all shapes, at least, and those before anything is measured.
_TURNS, _WARM = 3, 1
# A result is wrong that is so many times as far from f32's as the worst peer's, or eager's of the same program, and by so much of
# the scale beyond.
_FARTHER, _BEYOND = 2, 0.01


@dataclass(frozen=True)
class Figures:
    """Of one way to run a network: least milliseconds and error, of the scale of f32's results, by shape."""

    least: Sequence[float]
    errors: Sequence[float]


def peers_of(form: str, asked: Sequence[str]) -> list[str]:
    """Those of the peers that can be asked for it, by their names in `PEERS`."""
    known = _PEERS.get(form, _FLOAT_PEERS)
    return [known[p] for p in asked if p in known]


def narrow(w: Workload, dtype: torch.dtype) -> Workload:
    """A network whose weights and inputs are of another float type."""

    def make() -> nn.Module:
        return w.make().to(dtype)

    def inputs(*shape: int) -> tuple[Any, ...]:
        return tuple(x.to(dtype) if x.is_floating_point() else x for x in w.inputs(*shape))

    # A mean of narrow numbers (ConvNeXt's) makes torch guard a comparison of strides that always holds, which it can't prove.
    options = {**w.export_options, "prefer_deferred_runtime_asserts_over_guards": True}
    return replace(w, make=make, inputs=inputs, dtype=dtype, export_options=options)


def compare(w: Workload, form: str, threads: int, budget: float, peers: Sequence[str] = ("eager",)) -> list[Figures]:
    """Of this compiler in f32, of it and of peers in the form, one after the other at each turn, for `budget` seconds, and three
    turns at least. Raises ValueError where this compiler's results are farther from f32's than peers'."""
    torch.set_num_threads(threads)
    wide = w.subject()
    ours = narrow(w, _DTYPES[form]).subject() if form in _DTYPES else quantised(w)
    others = ours if form in _DTYPES else wide  # peers quantise the program by themselves
    runs: list[tuple[Subject, Peer]] = [(wide, PEERS["dhlo"](wide, threads)), (ours, PEERS["dhlo"](ours, threads))]
    if form not in _DTYPES and not _has_bytes(runs[1][1]):
        raise ValueError("the quantiser leaves all convolutions as they are")
    runs += [(others, PEERS[peer](others, threads)) for peer in peers]
    native = [[run.prepare(of.arguments(i)) for i in range(len(w.shapes))] for of, run in runs]
    spent: list[list[list[float]]] = [[[] for _ in w.shapes] for _ in runs]
    until, turn = time.perf_counter() + budget, 0
    with torch.no_grad():
        results = [[run.tensors(run.call(x))[0].double() for x in given] for (_, run), given in zip(runs, native, strict=True)]
        while turn < _TURNS + _WARM or time.perf_counter() < until:
            for (_, run), args, times in zip(runs, native, spent, strict=True):
                for given, of_shape in zip(args, times, strict=True):
                    start = time.perf_counter()
                    run.call(given)
                    if turn >= _WARM:
                        of_shape.append(1e3 * (time.perf_counter() - start))
            turn += 1
    figures = [
        Figures([min(t) for t in times], [_error(a, b) for a, b in zip(found, results[0], strict=True)])
        for times, found in zip(spent, results, strict=True)
    ]
    _check(figures, [] if form in _DTYPES else _eager_errors(ours, results[0]))
    return figures


def _has_bytes(run: Peer) -> bool:
    """Whether a program of this compiler has a convolution of bytes."""
    groups = json.loads(run.fn.native.metadata)["groups"]  # type: ignore[attr-defined]
    return any("dhlo.conv_bytes" in g["ops"] for g in groups)


def _eager_errors(of: Subject, wanted: Sequence[torch.Tensor]) -> list[float]:
    """Of the program's own results in eager PyTorch, by shape."""
    assert of.module is not None
    module = of.module()
    with torch.no_grad():
        return [_error(tree_leaves(module(*of.arguments(i)[0]))[0].double(), want) for i, want in enumerate(wanted)]


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30)) if want.numel() else 0.0


def _check(figures: Sequence[Figures], of_program: Sequence[float]) -> None:
    _, ours, *peers = figures
    worst = max([*of_program, *(e for p in peers for e in p.errors)], default=1.0)
    if not max(ours.errors) <= _FARTHER * worst + _BEYOND:
        raise ValueError(f"results are {max(ours.errors):.2g} of their scale from f32's, those of others {worst:.2g}")


def row(w: Workload, figures: Sequence[Figures]) -> str:
    """A line of the table: f32's time and the best peer's over this compiler's in the form, geometric mean and least; errors of
    this compiler's results and of the best peer's; then both ratios by shape."""
    wide, ours, *peers = figures
    best = [min(times) for times in zip(*(p.least for p in peers), strict=True)]
    parts, by_shape = [], []
    for other in (wide.least, best):
        ratios = [a / b for a, b in zip(other, ours.least, strict=True)]
        parts.append(f"{statistics.geometric_mean(ratios):6.2f} {min(ratios):5.2f}")
        by_shape.append(ratios)
    labels = "  ".join(f"{label} {a:.2f} {b:.2f}" for label, a, b in zip(w.labels, *by_shape, strict=True))
    errors = f"{max(ours.errors):7.1e} {min(max(p.errors) for p in peers):7.1e}"
    return f"{w.name:16} {parts[0]} {parts[1]} {errors}  {labels}"
