"""Workloads, measuring, reports and `dhlo bench`, in small sizes and without looking at times."""

from __future__ import annotations

import importlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

import dhlo
from benchmarks import mca, measure, report
from benchmarks.workloads import registry, select
from dhlo.bench.ceilings import Ceilings, cache_bytes
from dhlo.bench.explain import explain, sizes_of
from dhlo.bench.peers import PEERS, installed
from dhlo.bench.turns import Request, _Worker, take_turns
from dhlo.bench.worker import scaled_error
from dhlo.cli import app
from dhlo.commands.points import Sizes, parse_range, usual_points
from dhlo.errors import ContractError
from dhlo.ir.symbols import evaluate, parse

CEILINGS = Ceilings(2, f32_gflops=200.0, bf16_gflops=400.0, l2_gbs=200.0, l3_gbs=100.0, dram_gbs=20.0)


# ---------------------------------------------------------------------- workloads
@pytest.mark.parametrize("name", registry(tiny=True))
def test_workload_runs(name: str) -> None:
    w = registry(tiny=True)[name]
    module = w.module()
    with torch.no_grad():
        for shape in [*w.shapes, w.export_shape]:
            first = tree_leaves(module(*w.arguments(shape)))
            again = tree_leaves(module(*w.arguments(shape)))
            assert all(t.isfinite().all() for t in first)
            assert all(map(torch.equal, first, again)), "arguments must follow from the shape"


def test_full_registry_has_the_same_workloads() -> None:
    full, tiny = registry(), registry(tiny=True)
    families = {n.split("_")[0] for n in full}
    assert families == {n.split("_")[0] for n in tiny} == {f"w{i}" for i in range(9)}
    for w in full.values():
        assert len(set(w.labels)) == len(w.shapes) >= 3
        assert len(w.export_shape) == len(w.shapes[0])


def test_select_takes_names_and_first_parts() -> None:
    known = registry(tiny=True)
    assert [w.name for w in select("w0,w4_rope", known)] == ["w0_add1", "w4_rope"]
    assert all(w.name.startswith("w4_") for w in select("w4", known))
    with pytest.raises(ValueError, match="no workload 'w99'"):
        select("w0,w99", known)


# ---------------------------------------------------------------------- measuring
@pytest.mark.slow
def test_eager_and_dhlo_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure", lambda threads: CEILINGS)
    (w,) = select("w4_rmsnorm_res", registry(tiny=True))
    result = measure.measure_workload(w, ["eager", "dhlo"], 1, budget=0.0, rounds=1, tiny=True, results=tmp_path)
    for name in ("eager", "dhlo"):
        figures = result["peers"][name]
        assert "error" not in figures
        assert len(figures["median_ms"]) == len(figures["min_ms"]) == len(w.shapes)
        assert all(0 < least <= middle for least, middle in zip(figures["min_ms"], figures["median_ms"], strict=True))
        assert max(figures["errors"]) < 1e-5
    assert result["peers"]["dhlo"]["code_bytes"] > 0
    rows, columns = w.shapes[0]
    assert result["bytes"][0] == 4 * (2 * rows * columns + columns + 2 * rows * columns)  # x, r, w; both results
    measure.save(result, tmp_path)
    assert measure.load(1, tmp_path) == [json.loads(json.dumps(result))]
    assert measure.load(2, tmp_path) == []
    assert "2 thread" not in report.detail(result)


def test_references_are_kept(tmp_path: Path) -> None:
    (w,) = select("w5_f32_24x40", registry(tiny=True))
    work, path = measure.work_of(w, tmp_path)
    assert work.flops == [2 * m * 24 * 40 for (m,) in w.shapes]
    assert work.bytes == [4 * (24 * 40 + m * 24 + m * 40) for (m,) in w.shapes]
    written = path.stat().st_mtime_ns
    assert measure.work_of(w, tmp_path) == (work, path)
    assert path.stat().st_mtime_ns == written


def test_wrong_results_and_failures_are_reported(tmp_path: Path) -> None:
    (w,) = select("w4_gelu_bias", registry(tiny=True))
    _, path = measure.work_of(w, tmp_path)
    torch.save([[t + 1 for t in r] for r in torch.load(path)], path)
    request = Request("benchmarks.workloads:subject", {"name": w.name, "tiny": True}, len(w.shapes), 1, path, path=measure.ROOT)
    facts = take_turns(request, ["eager"])
    assert "wrong result" in facts["eager"]["error"]


def test_passes_repeat_short_shapes() -> None:
    (w,) = select("w4_gelu_bias", registry(tiny=True))
    repeats = [i + 1 for i in range(len(w.shapes))]
    request = Request(
        "benchmarks.workloads:subject", {"name": w.name, "tiny": True}, len(w.shapes), 1, repeats=repeats, path=measure.ROOT
    )
    worker = _Worker("eager", request)
    try:
        assert [len(t) for t in worker.ask(2)] == [2 * r for r in repeats]
    finally:
        worker.stop()


def test_even_passes_spend_as_long_on_short_shapes() -> None:
    assert measure._repeats([1.0, 1.0, 1.0]) == [1, 1, 1]
    assert measure._repeats([12.0, 3.0, 0.0]) == [1, 1, 50]
    assert measure._repeats([20.0, 1.0, 0.5, 0.1]) == [1, 5, 10, 50]


def test_scaled_error() -> None:
    want = torch.tensor([1.0, -4.0, math.inf])
    assert scaled_error(torch.tensor([1.0, -3.0, math.inf]), want) == 0.25
    assert math.isinf(scaled_error(torch.tensor([1.0, -4.0, 0.0]), want))
    assert math.isinf(scaled_error(torch.zeros(2), torch.zeros(3)))


def test_floors() -> None:
    small, big = cache_bytes()[2], 100 * cache_bytes().get(3, 1 << 20)
    assert CEILINGS.floor_seconds(200e9, 0) == 1.0
    assert CEILINGS.floor_seconds(200e9, 0, "bfloat16") == 0.5
    assert CEILINGS.floor_seconds(0, small) == pytest.approx(small / 200e9)
    assert CEILINGS.floor_seconds(0, big) == pytest.approx(big / 20e9)
    assert CEILINGS.floor_seconds(0, small, resident=big) == pytest.approx(small / 20e9)


# ---------------------------------------------------------------------- reports
def fake(workload: str, group: str, **peers: list[float]) -> dict[str, Any]:
    figures = {n: {"compile_s": 1.5, "code_bytes": 2048, "median_ms": t, "min_ms": t, "n": 3} for n, t in peers.items()}
    return {
        "workload": workload,
        "group": group,
        "threads": 2,
        "labels": ["1x7", "8x37"],
        "dtype": "float32",
        "flops": [1, 2],
        "bytes": [3, 4],
        "floor_ms": [0.5, 1.0],
        "machine": "a machine",
        "versions": {"torch": "9"},
        "ceilings": {"f32_gflops": 200.0, "bf16_gflops": 400.0, "l3_gbs": 100.0, "dram_gbs": 20.0},
        "date": "2030-01-01",
        "peers": figures,
    }


def test_detail() -> None:
    text = report.detail(fake("w1_x", "W1", eager=[4.0, 8.0], ort=[1.0, 4.0], dhlo=[2.0, 2.0]))
    assert "| 1x7 | 4.00 | **1.00** | 2.00 | 0.500 | 2.00 | 0.50 | 25% |" in text
    assert "| 8x37 | 8.00 | 4.00 | **2.00** | 1.00 | 4.00 | 2.00 | 50% |" in text
    assert "Geometric mean 2.83 over eager, 1.00 over the best other peer; worst shape 1x7: 0.50." in text


def test_detail_of_failures() -> None:
    result = fake("w1_x", "W1", eager=[4.0, 8.0])
    result["peers"]["dhlo"] = {"error": "no kernel"}
    text = report.detail(result)
    assert "`dhlo` fails: no kernel" in text and "| 1x7 | **4.00** | 0.500 | – | – | – |" in text
    assert "| W1 | fails |" in report.summary([result])


def test_summary_joins_groups() -> None:
    results = [
        fake("w4_a", "W4", eager=[4.0, 4.0], dhlo=[1.0, 2.0]),
        fake("w4_b", "W4", eager=[4.0, 4.0], dhlo=[2.0, 8.0]),
        fake("w6_c", "W6", eager=[4.0, 9.0], ort=[2.0, 2.0], dhlo=[4.0, 1.0]),
    ]
    text = report.summary(results)
    assert "| W4 | 1.68 | 1.68 | 0.50 (b 8x37) | 1.5 | 2 |" in text
    assert "| W6 | 3.00 | 1.00 | 0.50 (1x7) | 1.5 | 2 |" in text
    assert "specialised" not in text
    assert "Other peers: eager, ort; torch 9; 2030-01-01" in text


def test_peers_of_one_shape_have_a_column_of_their_own() -> None:
    result = fake("w1_x", "W1", eager=[4.0, 8.0], openvino_static=[1.0, 1.0], dhlo=[2.0, 2.0])
    assert "| 4.00 | 4.00 | 0.50 | 50% |" in report.detail(result)
    text = report.summary([result])
    assert "over the best specialised" in text and "| W1 | 2.83 | 2.83 | 2.00 (1x7) | 0.50 | 1.5 | 2 |" in text


def test_other_ways_of_using_dhlo_are_shown_and_not_compared_with() -> None:
    result = fake("w1_x", "W1", eager=[4.0, 8.0], dhlo=[2.0, 2.0], dhlo_grow=[1.0, 1.0])
    assert "| 2.00 | **1.00** |" in report.detail(result) and "1.00 over the best other" not in report.detail(result)
    assert "Other peers: eager;" in report.summary([result])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w2_decode", "w2_prefill"])
def test_growing_caches_are_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure", lambda threads: CEILINGS)
    (w,) = select(name, registry(tiny=True))
    result = measure.measure_workload(w, ["dhlo_grow"], 1, budget=0.0, rounds=1, tiny=True, results=tmp_path)
    fails = name == "w2_prefill"
    assert ("no argument of this program" in result["peers"]["dhlo_grow"].get("error", "")) == fails
    assert fails or max(result["peers"]["dhlo_grow"]["errors"]) < 1e-4


def test_insert_replaces_what_is_between_markers(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- measured:begin -->\nold\n<!-- measured:end -->\nafter\n<!-- mca:begin --><!-- mca:end -->")
    for _ in range(2):
        report.insert(path, "new\n")
        text = path.read_text()
        assert text == "before\n<!-- measured:begin -->\nnew\n<!-- measured:end -->\nafter\n<!-- mca:begin --><!-- mca:end -->"
    report.insert(path, "table", "mca")
    assert path.read_text() == text.replace("<!-- mca:begin -->", "<!-- mca:begin -->\ntable\n")
    path.write_text("nothing")
    with pytest.raises(ValueError, match="has no markers"):
        report.insert(path, "new")


def test_documents_have_markers() -> None:
    for name, marks in (
        ("README.md", ["measured"]),
        ("docs/performance.md", ["mca", "shapes", "x86-64-v3"]),
        ("docs/measurements.md", ["experts"]),
        ("docs/workloads.md", ["threads-1", "threads-2"]),
    ):
        text = (measure.ROOT / name).read_text()
        assert all(text.count(m.format(mark)) == 1 for mark in marks for m in report.MARKS)


# ---------------------------------------------------------------------- costs and dhlo bench
class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1000, 24)
        self.linear = torch.nn.Linear(24, 40)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.linear(self.table(ids)).softmax(-1) * scale


def exported() -> torch.export.ExportedProgram:
    rows = Dim("rows", min=1, max=100)
    example = torch.zeros(5, dtype=torch.int64), torch.ones(5, 1)
    return export(Net().eval(), example, dynamic_shapes=({0: rows}, {0: rows}))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program and the model file."""
    folder = tmp_path_factory.mktemp("bench")
    torch.export.save(exported(), folder / "net.pt2")
    dhlo.compile(exported()).save(folder / "net.so")
    return folder / "net.pt2", folder / "net.so"


def test_metadata_has_costs_and_launches(files: tuple[Path, Path]) -> None:
    model = dhlo.load(files[1]).native
    metadata = json.loads(model.metadata)
    groups = metadata["groups"]
    sizes = sizes_of(model.inputs, [(7,), (7, 1)])
    (product,) = [g for g in groups if g["anchor"] == "matmul"]
    flops, nbytes, weights = (evaluate(parse(product[k]), sizes) for k in ("flops", "bytes", "weight_bytes"))
    assert 2 * 7 * 24 * 40 <= flops <= 2 * 7 * 24 * 40 + 7 * 40
    assert 4 * 24 * 40 <= weights <= 4 * (24 * 40 + 40 + 7 * 24)
    assert nbytes < 4 * (24 * 40 + 40 + 7 * 24 + 7 * 40) + 7 * 8 + 1  # not the whole table
    spans = metadata["levels"][0]["groups"]
    assert all(0 <= a < b <= len(model.launches) for a, b in spans)
    assert all(b <= c for (_, b), (c, _) in zip(spans, spans[1:], strict=False))


def test_explain_accounts_for_the_kernels_that_ran(files: tuple[Path, Path]) -> None:
    model = dhlo.load(files[1]).native
    rows = explain(model, [torch.zeros(7, dtype=torch.int64), torch.ones(7, 1)], CEILINGS)
    assert {k for r in rows for k in r.kernels.split(" + ")} <= set(model.launches)
    assert any(r.kernels.startswith("matmul") and r.flops and r.bytes and r.floor and r.predicted for r in rows)
    assert [r.seconds for r in rows] == sorted((r.seconds for r in rows), reverse=True)


def test_parse_range() -> None:
    assert parse_range("s0=1:10:3") == ("s0", [1, 4, 7, 10])
    assert parse_range("ids.1=2:4") == ("ids.1", [2, 3, 4])
    assert parse_range("s0=1:20:x3") == ("s0", [1, 3, 9])
    for bad in ("s0", "s0=3", "s0=a:b", "s0=1:5:0", "s0=0:5:x2", "s0=1:5:x1", "s0=1:2:3:4"):
        with pytest.raises(ContractError):
            parse_range(bad)


def bench(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments), "--budget", "0", "--threads", "1"])
    return result.exit_code, result.output


@pytest.mark.slow
def test_bench_compares_peers(files: tuple[Path, Path]) -> None:
    code, text = bench(files[0], "--range", "ids.0=1:100:x10", "--peer", "eager,dhlo")
    assert code == 0, text
    assert "over the best other" in text and "fails" not in text
    assert all(f"ids.0={n}" in text for n in (1, 10, 100))


@pytest.mark.slow
def test_bench_of_usual_sizes(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Without shapes these are made up, within the bounds; figures are written as JSON, and what a hint is worth is told."""
    path = tmp_path / "net.json"
    code, text = bench(files[0], "--shape-range", "ids.0=2:7:20", "--peer", "dhlo", "--json", path)
    assert code == 0, text
    assert text.count("of the time without the hint") == 1 and "usual sizes (s" in text
    found = json.loads(path.read_text())
    assert [s["inputs"] for s in found["shapes"]] == [{"ids": [n], "scale": [n, 1]} for n in (2, 7, 20)]
    assert set(found["peers"]) == {"dhlo", "dhlo_unhinted"} and len(found["peers"]["dhlo"]["median_ms"]) == 3
    assert found["threads"] == 1 and found["machine"]


@pytest.mark.slow
def test_bench_of_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = os.environ.get("DHLO_NUM_THREADS")
    x = torch.ones(5)
    n = ({0: Dim("n", max=30)},)
    entries = {name: export(m, (x,), dynamic_shapes=n) for name, m in (("a", torch.nn.ReLU()), ("b", torch.nn.Sigmoid()))}
    dhlo.compile(entries, shapes={"n": dhlo.Range(opt=6)}).save(tmp_path / "two.so")
    result = CliRunner().invoke(app, ["bench", str(tmp_path / "two.so"), "--entry", "b", "--json", "-", "--budget", "0"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [s["label"] for s in found["shapes"]] == ["n=1", "n=6", "n=24"] and "median_ms" in found["peers"]["dhlo"]
    explained = CliRunner().invoke(app, ["bench", str(tmp_path / "two.so"), "--json", "-", "--explain"])
    assert explained.exit_code == 1 and "leave out --explain" in explained.output
    assert os.environ.get("DHLO_NUM_THREADS") == threads
    monkeypatch.setenv("DHLO_NUM_THREADS", "many")
    wrong = CliRunner().invoke(app, ["bench", str(tmp_path / "two.so")])
    assert wrong.exit_code == 1 and "DHLO_NUM_THREADS: expected a number from 1 to 1024, got 'many'" in wrong.output


@pytest.mark.slow
def test_bench_of_a_program_with_types_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--import` goes for the peers' processes, too."""
    (tmp_path / "own_types.py").write_text(
        "from dataclasses import dataclass\nimport torch\n"
        "@dataclass\nclass Pair:\n    a: torch.Tensor\n    b: torch.Tensor\n"
        "class Sum(torch.nn.Module):\n    def forward(self, pair):\n        return pair.a + pair.b\n"
        "torch.export.register_dataclass(Pair, serialized_type_name='own.Pair')\ntorch.serialization.add_safe_globals([Pair])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own: Any = importlib.import_module("own_types")
    torch.export.save(export(own.Sum(), (own.Pair(torch.ones(3), torch.ones(3)),)), tmp_path / "sum.pt2")
    code, text = bench(tmp_path / "sum.pt2", "--peer", "dhlo", "--import", "own_types")
    assert code == 0, text


def test_made_up_sizes_are_those_that_the_model_takes() -> None:
    values: Any = [{"name": "x", "dtype": "float32", "dims": ("a", "8", "2*a")}, {"name": "y", "dtype": "int64", "dims": ("b",)}]
    known = Sizes({"a": (0, None), "b": (3, 9)}, {"a": 5}, {"a": 2, "b": 4}, lambda shapes: shapes[0][0] != 1)
    assert [(p.label, p.shapes) for p in usual_points(values, known)] == [
        ("a=5, b=4", [(5, 8, 10), (4,)]),
        ("a=20, b=9", [(20, 8, 40), (9,)]),
    ]
    with pytest.raises(ContractError, match="takes none of the shapes that were made up"):
        usual_points(values, Sizes({}, {}, {}, lambda shapes: False))


def test_bench_explains_a_model_file(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dhlo.commands.bench.measure", lambda threads: CEILINGS)
    code, text = bench(files[1], "--shape", "ids=3", "--shape", "ids=50", "--explain")
    assert code == 0, text
    assert "kernels at ids=3" in text and "kernels at ids=50" in text and "of the ceiling" in text and "over predicted" in text


def test_bench_refuses(files: tuple[Path, Path]) -> None:
    for arguments, message in (
        ((files[1], "--shape", "ids=3", "--peer", "eager"), "needs the exported program"),
        ((files[1], "--shape", "ids=3", "--peer", "other"), "no peer 'other'"),
        ((files[1], "--entry", "other"), "other"),
        ((files[1], "--shape-range", "rows=1:3"), "--shape-range needs the exported program"),
        ((files[0], "--entry", "other"), "--entry is for model files"),
        ((files[1], "--shape", "nothing=3"), "no input or size 'nothing'"),
        ((files[1], "--shape", "ids=3", "--range", "ids.0=4:5"), "--range varies"),
        ((files[1], "--shape", "ids=3,scale=4x1"), "dhlo failed"),
    ):
        code, text = bench(*arguments)
        assert code == 1 and message in text, text


def test_plot_needs_matplotlib(files: tuple[Path, Path], tmp_path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        code, text = bench(files[1], "--shape", "ids=3", "--plot", tmp_path / "a.svg")
        assert code == 1 and "--plot needs matplotlib" in text
        return
    code, text = bench(files[1], "--range", "ids.0=1:8:x2", "--plot", tmp_path / "a.svg")
    assert code == 0, text
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_installed_peers() -> None:
    assert {"eager", "inductor", "dhlo"} <= set(installed()) <= set(PEERS)


@pytest.mark.slow
def test_every_loop_for_llvm_mca_is_found() -> None:
    programs = mca.assemblies("aarch64")
    for case in mca.CASES:
        assert mca.find(case, programs).fmas > 0
