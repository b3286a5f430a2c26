"""The benchmark of products whose operands come from further away: how many copies take turns, that they run, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import cold, measure
from dhlo.bench.ceilings import Ceilings


def test_as_many_copies_take_turns_as_lie_in_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "cache_bytes", lambda: {1: 32 << 10, 2: 1 << 20, 3: 32 << 20})
    assert cold.operand_bytes((3, 2, 5, 7), torch.float32) == 3 * (2 * 5 + 5 * 7) * 4
    assert cold.operand_bytes((2, 5, 7), torch.bfloat16) == (2 * 5 + 5 * 7) * 2
    assert [cold.copies(level, 1 << 20) for level in cold.LEVELS] == [1, 8, 64]
    assert [cold.copies(level, 8 << 20) for level in cold.LEVELS] == [1, 0, 8]
    assert cold.copies("memory", 1 << 30) == 2 and cold.copies("memory", 16) == 400
    monkeypatch.setattr(cold, "cache_bytes", lambda: {1: 32 << 10, 2: 2 << 20, 3: 2 << 20})
    assert cold.copies("third cache", 16) == 0


@pytest.mark.parametrize("sizes", [(3, 5, 7), (2, 3, 5, 7)])
def test_copies_differ_in_place_and_lie_apart(sizes: tuple[int, ...]) -> None:
    w = cold.workload("f16", sizes, "memory")
    assert len(w.shapes) == cold.copies("memory", cold.operand_bytes(sizes, torch.float16)) > 1
    given = [t for s in w.shapes[:3] for t in w.arguments(s)]
    assert [tuple(t.shape) for t in given[:2]] == [(*sizes[:-3], *sizes[-3:-1]), (*sizes[:-3], *sizes[-2:])]
    starts = sorted((t.data_ptr(), t.numel() * t.element_size()) for t in given)
    assert all(other - start - length >= 64 << 10 for (start, length), (other, _) in zip(starts, starts[1:], strict=False))


@pytest.mark.slow
def test_products_are_measured_at_each_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure", lambda threads: Ceilings(1, 100.0, 200.0, 100.0, 50.0, 20.0))
    for level in cold.LEVELS:
        given = {"tag": "f32", "sizes": (2, 40, 300, 500), "level": level}
        result = measure.measure_workload(
            cold.workload(**given), ["dhlo"], 1, budget=0.0, rounds=1, results=tmp_path, subject=("benchmarks.cold:subject", given)
        )
        assert "error" not in result["peers"]["dhlo"]
        assert len(result["peers"]["dhlo"]["min_ms"]) == cold.copies(level, cold.operand_bytes((2, 40, 300, 500), torch.float32))


def test_table() -> None:
    found = {
        (10, 20, 30): {"again": {"dhlo": 1.0, "eager": 2.0}, "memory": {"dhlo": 2.0, "eager": 2.0}},
        (5, 10, 20, 30): {"again": {"dhlo": 1.0, "eager": 8.0}, "third cache": {"dhlo": 2.0}, "memory": {"eager": 4.0}},
    }
    lines = cold.table(found, ["dhlo", "eager"]).split("\n")
    assert lines[0].endswith("| eager over dhlo, again | eager over dhlo, third cache | eager over dhlo, memory |")
    assert lines[2] == "| 10 x 20 x 30 | 0, -, 0 | 2.00 | - | 1.00 |"
    assert lines[3] == "| 5 x 10 x 20 x 30 | 0, 0, - | 8.00 | - | - |"
    assert lines[4] == "| mean |  | 4.00 | - | 1.00 |"
