"""Where a model's time goes: each kernel's time, rates, and share of what the machine can do."""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dhlo import _runtime
from dhlo.bench.ceilings import Ceilings
from dhlo.codegen.families.box import PRODUCT_WAKE_SHARE, WAKE_SHARE
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.families.gemm.tiles import TILES_PAY
from dhlo.codegen.target import Target, parse_target
from dhlo.ir.symbols import evaluate, parse
from dhlo.shape_infer.cost import Rates

__all__ = ["GroupTime", "KernelTime", "by_kernels", "explain", "rates", "sizes_of", "time_groups"]

_SECONDS = 0.3
_PRODUCTS = ("matmul", "convolution", "attention")
_FEWEST_CALLS = 5
_ELEMENT = re.compile(r"tensor<(?:[\d?]+x)*([a-z]+\d+)")


@dataclass
class KernelTime:
    """Launches that work together (a product and the packing before it, say) at all places of one call that use them.

    `floor` is the least time that the machine's ceilings allow, `predicted` what the cost model expects, from the facts that the
    runtime has measured; they, flops and bytes are None where sizes depend on data or the launches belong to no group.
    """

    kernels: str
    launches: int = 0
    seconds: float = 0.0
    flops: float | None = 0.0
    bytes: float | None = 0.0
    floor: float | None = 0.0
    predicted: float | None = 0.0

    def add(self, launches: int, seconds: float, work: tuple[float, float, float, float] | None) -> None:
        """Counts one place; `work` is (flops, bytes, floor, predicted)."""
        self.launches += launches
        self.seconds += seconds
        before = (self.flops, self.bytes, self.floor, self.predicted)
        if work is None or None in before:
            self.flops = self.bytes = self.floor = self.predicted = None
        else:
            self.flops, self.bytes, self.floor, self.predicted = (x + y for x, y in zip(before, work, strict=True) if x is not None)


def sizes_of(inputs: Sequence[_runtime.Value], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The symbols' values at the inputs' shapes."""
    return {
        d: size
        for v, shape in zip(inputs, shapes, strict=True)
        for d, size in zip(v["dims"], shape, strict=True)
        if parse(d).is_Symbol
    }


def rates(target: Target, threads: int) -> Rates:
    """What the cost model knows: what the target can do, and what the runtime has measured of this machine."""
    facts = _runtime.machine_facts()
    fma = facts[f"fma{target.vector_bits}_per_us"] / 1000
    f32 = 2 * fma * target.lanes("f32")
    dots = facts["bf16_percent"] / 100 if "bf16" in target.dots else 1
    byte_dots = 4.0 if {"i8", "ui8"} & set(target.dots) else 1.0
    matrices, products = facts["tiles_percent"], target.tiles.products if target.tiles is not None else {}
    if matrices >= TILES_PAY:
        dots = max(dots, matrices / 100) if BF16 in products else dots
        byte_dots = max(byte_dots, 2 * matrices / 100) if "i8" in products else byte_dots
    flops = {"f32": f32, "f64": f32 / 2, "bf16": f32 * max(dots, 1), "i32": f32 * byte_dots}
    sizes, speeds = (facts["l2_bytes"], facts["l3_bytes"]), (facts["l2_bytes_per_us"], facts["l3_bytes_per_us"])
    capacities = (threads * sizes[0], sizes[1])
    levels = [(0.75 * size, speed / 1000) for size, speed in zip(capacities, speeds, strict=True) if size]
    levels.append((math.inf, facts["memory_bytes_per_us"] / 1000))
    return Rates(threads, flops, levels, facts["wake_ns"], WAKE_SHARE, PRODUCT_WAKE_SHARE)


@dataclass(frozen=True)
class GroupTime:
    """What one call takes in a group's launches, or in one launch of none (`group` is -1 then). The last four are as in
    KernelTime."""

    group: int
    kernels: list[str]
    launches: int
    seconds: float
    flops: float | None
    bytes: float | None
    floor: float | None
    predicted: float | None


def explain(model: _runtime.Model, tensors: Sequence[torch.Tensor], ceilings: Ceilings) -> list[KernelTime]:
    """Runs the model some times with these inputs; the most expensive kernels first. Times are medians over the calls.

    Raises ValueError where the inputs break the model's contract.
    """
    return by_kernels(time_groups(model, tensors, ceilings))


def by_kernels(groups: Sequence[GroupTime]) -> list[KernelTime]:
    """The same times by kernels that work together, the most expensive first."""
    rows: dict[str, KernelTime] = {}
    for g in groups:
        key = " + ".join(g.kernels)
        known = g.flops is not None and g.bytes is not None and g.floor is not None and g.predicted is not None
        work = (g.flops, g.bytes, g.floor, g.predicted) if known else None
        rows.setdefault(key, KernelTime(key)).add(g.launches, g.seconds, work)  # type: ignore[arg-type]
    return sorted(rows.values(), key=lambda r: -r.seconds)


def time_groups(model: _runtime.Model, tensors: Sequence[torch.Tensor], ceilings: Ceilings) -> list[GroupTime]:
    """Runs the model some times with these inputs: what each group that ran takes, in order, and then launches that belong to none.
    Raises ValueError where the inputs break the model's contract."""
    times = _site_times(model, tensors)
    names = model.launches
    sizes = sizes_of(model.inputs, [t.shape for t in tensors])
    machine = rates(parse_target(model.level or "native"), ceilings.threads)
    metadata = json.loads(model.metadata)
    (level,) = (x for x in metadata["levels"] if x["name"] == model.level)
    out, grouped = list[GroupTime](), set[int]()
    for number, (group, (first, end)) in enumerate(zip(metadata["groups"], level["groups"], strict=True)):
        grouped |= set(range(first, end))
        ran = [s for s in range(first, end) if s in times]
        if ran:
            kernels = [names[s] for s in ran]
            work = _work(group, kernels, sizes, ceilings, machine, model.constants_bytes) or (None,) * 4
            out.append(GroupTime(number, kernels, len(ran), sum(times[s] for s in ran), *work))
    out += [GroupTime(-1, [names[s]], 1, times[s], None, None, None, None) for s in times if s not in grouped]
    return out


def _site_times(model: _runtime.Model, tensors: Sequence[torch.Tensor]) -> dict[int, float]:
    """Median seconds of every launch site that ran."""
    session = _runtime.Session(model, profile=True)
    session(list(tensors))
    samples: dict[int, list[float]] = {}
    start, calls = time.monotonic(), 0
    while calls < _FEWEST_CALLS or time.monotonic() - start < _SECONDS:
        session.set_profile(True, reset=True)
        session(list(tensors))
        for site, (_, count, nanoseconds) in enumerate(session.profile):
            if count:
                samples.setdefault(site, []).append(nanoseconds / 1e9)
        calls += 1
    return {site: statistics.median(t) for site, t in samples.items()}


def _work(
    group: Mapping[str, Any], ran: Sequence[str], sizes: Mapping[str, int], ceilings: Ceilings, machine: Rates, constants: int
) -> tuple[float, float, float, float] | None:
    """Flops, bytes, least and predicted seconds of a group of which the kernels `ran`; None where they depend on data.

    Weights come from the level in which all of the model's fit, as every call reads them all; the rest from where the
    group's own bytes fit.
    """
    try:
        flops, nbytes, weights = (evaluate(parse(group[k]), sizes) for k in ("flops", "bytes", "weight_bytes"))
        chosen = [evaluate(parse(e), sizes) for kernel, e in group.get("variants", {}).items() if kernel in ran]
    except KeyError:
        return None
    elements = [m[1] for r in group["results"] if (m := _ELEMENT.match(r))]
    arithmetic = ceilings.floor_seconds(flops, 0, elements[0] if elements else "f32")
    moving = ceilings.floor_seconds(0, weights, resident=constants) + ceilings.floor_seconds(0, nbytes - weights)
    # Beside products an instruction does one operation of a multiply-add's two.
    work = chosen[0] if chosen else flops if group["anchor"] in _PRODUCTS else 2 * flops
    dtype, product = elements[0] if elements else "f32", group["anchor"] in ("matmul", "convolution")
    predicted = machine.seconds(work, nbytes, weights, constants, dtype, len(ran), product=product)
    return flops, nbytes, max(arithmetic, moving), predicted
