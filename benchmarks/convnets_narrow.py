"""Convolution networks in bf16 or f16 beside f32 by this compiler and beside peers, in turns in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import Workload
from dhlo.bench.peers import PEERS

__all__ = ["DTYPES", "NARROW_PEERS", "compare", "narrow", "row"]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
"""What networks are compared in, by the names of the command line."""
NARROW_PEERS = ("eager", "openvino")
"""Peers that can be asked for it."""

# Turns over all shapes, at least, and those before anything is measured.
_TURNS, _WARM = 3, 1


def narrow(w: Workload, dtype: torch.dtype) -> Workload:
    """A network whose weights and inputs are of another float type."""

    def make() -> nn.Module:
        return w.make().to(dtype)

    def inputs(*shape: int) -> tuple[Any, ...]:
        return tuple(x.to(dtype) for x in w.inputs(*shape))

    return replace(w, make=make, inputs=inputs, dtype=dtype)


def compare(w: Workload, dtype: torch.dtype, threads: int, budget: float, peers: Sequence[str] = ("eager",)) -> list[list[float]]:
    """Least milliseconds by shape: of this compiler in f32, of it and of peers in the dtype, one after the other at each turn, for
    `budget` seconds, and three turns at least."""
    other = narrow(w, dtype)
    runs = [(w, PEERS["dhlo"](w.subject(), threads)), (other, PEERS["dhlo"](other.subject(), threads))]
    runs += [(other, PEERS[peer](other.subject(), threads)) for peer in peers]
    arguments = [[run.prepare((of.arguments(shape), {})) for shape in w.shapes] for of, run in runs]
    spent: list[list[list[float]]] = [[[] for _ in w.shapes] for _ in runs]
    until, turn = time.perf_counter() + budget, 0
    with torch.no_grad():
        while turn < _TURNS + _WARM or time.perf_counter() < until:
            for (_, run), args, times in zip(runs, arguments, spent, strict=True):
                for given, of_shape in zip(args, times, strict=True):
                    start = time.perf_counter()
                    run.call(given)
                    if turn >= _WARM:
                        of_shape.append(1e3 * (time.perf_counter() - start))
            turn += 1
    return [[min(t) for t in times] for times in spent]


def row(w: Workload, least: Sequence[Sequence[float]]) -> str:
    """A line of the table: f32's time and the best peer's over this compiler's in the dtype, geometric mean and least, then each by
    shape."""
    wide, ours, *peers = least
    best = [min(times) for times in zip(*peers, strict=True)]
    parts, by_shape = [], []
    for other in (wide, best):
        ratios = [a / b for a, b in zip(other, ours, strict=True)]
        parts.append(f"{statistics.geometric_mean(ratios):6.2f} {min(ratios):5.2f}")
        by_shape.append(ratios)
    labels = "  ".join(f"{label} {a:.2f} {b:.2f}" for label, a, b in zip(w.labels, *by_shape, strict=True))
    return f"{w.name:16} {parts[0]} {parts[1]}  {labels}"
