"""The cost model: what a machine should take for a group, and the facts of the machine that it rests on."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dhlo
from dhlo import _runtime
from dhlo.bench.explain import rates
from dhlo.codegen.kernel_ir.abi import MACHINE_RANGES
from dhlo.codegen.target import parse_target
from dhlo.shape_infer.cost import Rates

BOX = Rates(2, {"f32": 100.0, "bf16": 200.0}, [(1000.0, 50.0), (10_000.0, 20.0), (math.inf, 10.0)], 400.0, 16.0, 6.0)
"""100 flops a nanosecond; levels of 1,000 and 10,000 bytes and memory."""


def nanoseconds(*args: float, dtype: str = "f32", launches: int = 1) -> float:
    flops, nbytes, weights, constants = args
    return BOX.seconds(flops, nbytes, weights, constants, dtype, launches) * 1e9


def test_arithmetic_and_memory_overlap() -> None:
    assert nanoseconds(1000, 0, 0, 0) == pytest.approx(10)
    assert nanoseconds(1000, 0, 0, 0, dtype="bf16") == pytest.approx(5)
    assert nanoseconds(1000, 0, 0, 0, dtype="i64") == pytest.approx(10)
    assert nanoseconds(0, 500, 0, 0) == pytest.approx(10)
    assert nanoseconds(1000, 500, 0, 0) == pytest.approx(10)


def test_levels() -> None:
    assert nanoseconds(0, 1000, 0, 0) == pytest.approx(20)
    assert nanoseconds(0, 2000, 0, 0) == pytest.approx(100)
    assert nanoseconds(0, 11_000, 0, 0) == pytest.approx(1100)
    # Weights lie where all constants fit.
    assert nanoseconds(0, 500, 500, 5000) == pytest.approx(25)
    assert nanoseconds(0, 600, 500, 50_000) == pytest.approx(52)


def test_threads_share_what_pays_for_reaching_them() -> None:
    alone = 2 * 16 * 400 * 100
    assert nanoseconds(alone - 100, 0, 0, 0) == pytest.approx(12_799)
    assert nanoseconds(alone, 0, 0, 0) == pytest.approx(6400 + 400)
    assert nanoseconds(alone, 0, 0, 0, launches=2) == pytest.approx(12_800)
    few = 2 * 6 * 400 * 100  # of products, which share less
    for flops, wanted in ((few - 100, 4799), (few, 2400 + 400)):
        assert BOX.seconds(flops, 0, 0, 0, "f32", product=True) * 1e9 == pytest.approx(wanted)
    one = Rates(1, BOX.flops, BOX.caches, BOX.wake, BOX.share, BOX.product_share)
    assert one.seconds(1e9, 0, 0, 0, "f32") == pytest.approx(1e7 / 1e9)


def test_rates_of_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {name: least for name, (least, _) in MACHINE_RANGES.items()} | {
        "fma256_per_us": 8000,
        "fma512_per_us": 4000,
        "bf16_percent": 200,
        "l2_bytes_per_us": 64_000,
    }
    monkeypatch.setattr(_runtime, "machine_facts", lambda: facts)
    v3, v4, bf16 = (rates(parse_target(t), 2) for t in ("x86-64-v3", "x86-64-v4", "x86-64-v4+bf16"))
    assert v3.flops["f32"] == v4.flops["f32"] == 128
    assert (v4.flops["bf16"], bf16.flops["bf16"]) == (128, 256)
    assert v3.caches[0] == (0.75 * 2 * facts["l2_bytes"], 64)
    assert len(v3.caches) == 2 and v3.caches[-1][0] == math.inf  # no third cache
    facts["tiles_percent"] = 1600
    tiles = rates(parse_target("x86-64-v4+bf16+amx-bf16+amx-int8"), 2)
    assert (tiles.flops["bf16"], tiles.flops["i32"], tiles.flops["f32"]) == (2048, 4096, 128)
    assert rates(parse_target("x86-64-v4+bf16"), 2).flops == bf16.flops
    facts["bf16_percent"] = 50  # dot products that are slow aren't taken
    assert rates(parse_target("x86-64-v4+bf16"), 2).flops["bf16"] == 128


def test_winograd_counts_its_own_arithmetic() -> None:
    x = torch.randn(1, 64, 20, 20)
    module = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    model = dhlo.compile(torch.export.export(module, (x,))).native
    (group,) = (g for g in json.loads(model.metadata)["groups"] if g["anchor"] == "convolution")
    assert group["variants"].keys() < set(model.launches)
    four, two = (next(int(v) for k, v in group["variants"].items() if f"_{m}x{m}_" in k) for m in (4, 2))
    assert int(group["flops"]) / 4 < four < two < int(group["flops"])


def facts_of(**env: str) -> dict[str, int]:
    """What a new process finds with these variables."""
    code = "import json; from dhlo import _runtime; print(json.dumps(_runtime.machine_facts()))"
    kept = {k: v for k, v in os.environ.items() if k not in ("DHLO_MACHINE", "DHLO_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run([sys.executable, "-c", code], env=kept | env, capture_output=True, text=True, check=True)
    facts: dict[str, int] = json.loads(done.stdout)
    assert facts.keys() == MACHINE_RANGES.keys()
    assert all(lo <= facts[name] <= hi for name, (lo, hi) in MACHINE_RANGES.items())
    return facts


def test_facts_are_given_or_kept(tmp_path: Path) -> None:
    given = facts_of(DHLO_MACHINE="wake_ns=777,ahead_more=2048", HOME=str(tmp_path))
    assert (given["wake_ns"], given["ahead_more"], given["ahead_one"]) == (777, 2048, 8192)
    assert facts_of(DHLO_MACHINE="nominal") == given | {"wake_ns": 330, "ahead_more": 12288}
    assert not list(tmp_path.iterdir())
    facts_of(DHLO_MACHINE="", HOME="/proc")  # nowhere to keep them
    facts_of(DHLO_MACHINE="measure", HOME=str(tmp_path))
    assert not list(tmp_path.iterdir())
