"""The sweep over random products: what it draws, that its programs run, and how it is summed up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import measure
from benchmarks.sweep import compare_types, sample, summarise
from dhlo.bench.ceilings import Ceilings


def test_the_seed_decides_the_sample() -> None:
    first, again, other = sample(30, 0), sample(30, 0), sample(30, 1)
    assert {n: w.shapes for n, w in first.items()} == {n: w.shapes for n, w in again.items()}
    assert first.keys() != other.keys() and first["f32_argument"].shapes != other["f32_argument"].shapes
    for w in first.values():
        assert len(set(w.labels)) == len(w.shapes)
        for shape in w.shapes:
            m, *depths = shape[-3:] if len(shape) > 1 else (*shape, *map(int, w.name.rpartition("_")[2].split("x")))
            assert 1 <= m <= 2048 and all(16 <= x <= 16384 for x in depths)
    for tag in ("f32", "bf16", "f16"):
        assert len(first[f"{tag}_argument"].shapes) == len(first[f"{tag}_batched"].shapes) == 30
        assert sum(n.startswith(f"{tag}_constant") for n in first) == 10


def test_powers_of_two_are_drawn_if_asked_for() -> None:
    """The rows stay what they are."""
    plain, powers = sample(30, 0), sample(30, 0, powers=True)
    for tag in ("f32", "bf16", "f16"):
        for kind in ("argument", "batched"):
            sizes = [s[-2:] for s in powers[f"{tag}_{kind}"].shapes]
            assert all(x == 1 << x.bit_length() - 1 and 16 <= x <= 16384 for s in sizes for x in s) and len(set(sizes)) > 10
        assert any(s[-3] & (s[-3] - 1) for s in powers[f"{tag}_argument"].shapes)
    assert plain["f32_argument"].shapes != powers["f32_argument"].shapes


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bf16_argument", "f16_argument", "f32_batched")]


@pytest.mark.parametrize("name", ["f32_constant", *SLOW])
def test_programs_of_the_sample_are_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure", lambda threads: Ceilings(1, 100.0, 200.0, 100.0, 50.0, 20.0))
    given = {"count": 3, "seed": 0, "tiny": True, "powers": False}
    w = next(w for n, w in sample(**given).items() if n.startswith(name))
    result = measure.measure_workload(
        w,
        ["eager", "dhlo"],
        1,
        budget=0.0,
        rounds=1,
        results=tmp_path,
        subject=("benchmarks.sweep:subject", {"name": w.name, **given}),
    )
    assert all("error" not in f for f in result["peers"].values())
    assert w.dtype == getattr(torch, result["dtype"])
    assert 0 < summarise([result]).least < math.inf and summarise([result]).count == len(w.shapes)


@pytest.mark.slow
def test_types_are_compared_at_the_same_sizes() -> None:
    found = compare_types(3, 0, 1, tiny=True)
    shapes = [(w, s) for n, w in sample(3, 0, True).items() if n.startswith("f32") for s in w.shapes]
    assert len(found) == len(shapes) == 9 and all(0 < ratio < math.inf for ratio, _, _ in found)
    for (_, kind, sizes), (w, s) in zip(found, shapes, strict=True):
        assert w.group == f"f32 {kind}" and sizes[: len(s)] == s


def _result(workload: str, labels: list[str], flops: list[float], **ms: list[float]) -> dict[str, Any]:
    return {
        "workload": workload,
        "group": workload,
        "labels": labels,
        "flops": flops,
        "dtype": "float32",
        "ceilings": {"f32_gflops": 100.0, "bf16_gflops": 200.0},
        "peers": {name: {"min_ms": times} for name, times in ms.items()},
    }


def test_summary() -> None:
    few = _result("f32_constant_0_512x1024", ["8", "256"], [1e8, 2e8], eager=[2.0, 8.0], ort=[4.0, 2.0], dhlo=[1.0, 2.5])
    other = _result("f32_argument", ["256x512x16"], [1e8], eager=[1.0], dhlo=[1.0])
    s = summarise([few, other])
    assert s.count == 3 and s.least == pytest.approx(0.8) and s.below == pytest.approx(1 / 3)
    assert s.mean == pytest.approx((2.0 * 0.8) ** (1 / 3)) and s.ceiling == pytest.approx((1.0 * 0.8) ** (1 / 3))
    assert s.worst[0] == (pytest.approx(0.8), "f32_constant_0_512x1024 256x512x1024")
    large = summarise([few, other], large=True)
    assert large.count == 1 and large.mean == pytest.approx(0.8)
    failed = {**other, "peers": {"dhlo": {"error": "no kernel"}}}
    assert summarise([failed]).count == 0 and math.isnan(summarise([failed]).mean)
    assert math.isnan(summarise([_result("f32_argument", ["2x3x4"], [1.0], dhlo=[1.0])]).mean)
