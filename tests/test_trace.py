"""Traces of calls: spans that nest, on the threads that did the work, with source lines and shapes."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim
from typer.testing import CliRunner

import dhlo
from dhlo import ContractError, SessionError, _runtime
from dhlo.cli import app
from dhlo.trace import _Events, traced


class Counting(torch.nn.Module):
    """A product, a softmax, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 48)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.softmax(self.linear(x), -1) + self.calls


@pytest.fixture(scope="module")
def model() -> dhlo.CompiledModel:
    rows = ({0: Dim("rows", max=100000)},)
    return dhlo.compile(torch.export.export(Counting().eval(), (torch.randn(4, 32),), dynamic_shapes=rows), name="counting")


def events(path: Path) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Spans and the names of threads; every span has what the format asks for."""
    data = json.loads(path.read_text())
    assert data["displayTimeUnit"] == "ns" and data["otherData"] == {}
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["pid"] == data["traceEvents"][0]["pid"] for e in spans)
    names = {e["tid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert {e["tid"] for e in spans} == set(names)
    return spans, names


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return outer["ts"] - 0.002 <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.002


def test_calls(model: dhlo.CompiledModel, tmp_path: Path) -> None:
    session = model.session()
    with session.trace(tmp_path / "trace.json"):
        session(torch.randn(3, 32))
        session(torch.randn(5, 32))
    session(torch.randn(7, 32))
    spans, _ = events(tmp_path / "trace.json")
    runs = [e for e in spans if e["cat"] == "run"]
    assert [r["args"]["x"] for r in runs] == [[3, 32], [5, 32]] and {r["name"] for r in runs} == {"counting"}
    for n, run in zip((3, 5), runs, strict=True):
        launches = [e for e in spans if e["cat"] == "launch" and e["args"]["run"] == run["args"]["run"]]
        assert launches and all(inside(e, run) and e["tid"] == run["tid"] for e in launches)
        assert all(e["name"] == model.native.launches[e["args"]["launch"]] for e in launches)
        product = next(e["args"] for e in launches if e["args"].get("anchor") == "matmul")
        assert product["results"] == [f"f32[{n}, 48]"] and product["flops"] >= 2 * n * 32 * 48
        assert product["module"] == "linear" and product["source"].endswith(".py:" + product["source"].rpartition(":")[2])
        softmax = next(e["args"] for e in launches if e["args"].get("anchor") == "reduction")
        line = next(k for k, text in enumerate(Path(__file__).read_text().split("\n"), 1) if "torch.softmax(" in text)
        assert softmax["source"] == f"tests/test_trace.py:{line}"


def test_threads(model: dhlo.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each thread did lies within the launch, and the parts make up the whole."""
    path = tmp_path / "model.so"
    model.save(path)
    monkeypatch.setenv("DHLO_NUM_THREADS", "2")
    session = _runtime.Session(_runtime.Model.from_file(path))
    with traced(tmp_path / "trace.json", [session]):
        for _ in range(20):
            session([torch.randn(20000, 32)])
    spans, names = events(tmp_path / "trace.json")
    launches = {(e["args"]["run"], e["args"]["launch"]): e for e in spans if e["cat"] == "launch"}
    items: dict[tuple[int, int], int] = {}
    for e in spans:
        if e["cat"] in ("work", "wait"):
            key = (e["args"]["run"], e["args"]["launch"])
            assert inside(e, launches[key])
            items[key] = items.get(key, 0) + e["args"].get("items", 0)
    assert items and all(launches[key]["args"]["items"] == n for key, n in items.items())
    assert {"calls"} <= set(names.values()) <= {"calls", "worker 1"}  # on a busy machine no other thread may come in time


def test_failures_are_in_the_trace_and_leave_no_trace_on(model: dhlo.CompiledModel, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    session = model.session()
    with pytest.raises(ContractError), session.trace(path):
        session(torch.randn(3, 32))
        session(torch.randn(3, 31))
    assert session.read_state("calls").item() == 1
    spans, _ = events(path)
    assert ["status" in e["args"] for e in spans if e["cat"] == "run"] == [False, True]
    with session.trace(path):
        with pytest.raises(SessionError, match="traced already"), session.trace(path):
            pass
        session(torch.randn(2, 32))
    assert [e["args"]["x"] for e in events(path)[0] if e["cat"] == "run"] == [[2, 32]]
    with pytest.raises(OSError), session.trace(tmp_path / "no" / "trace.json"):
        session(torch.randn(2, 32))
    with pytest.raises(RuntimeError, match="not being traced"):
        session.native.stop_trace()
    for capacity in (0, -1, 1 << 40, 1 << 63):
        with pytest.raises((ValueError, OverflowError)):
            session.native.start_trace(capacity)
    session(torch.randn(2, 32))


def test_full_and_empty(model: dhlo.CompiledModel, tmp_path: Path) -> None:
    path, session = tmp_path / "trace.json", model.session()
    with traced(path, [session.native], spans=5):
        for _ in range(4):
            session(torch.randn(0, 32))
            session(torch.randn(2, 32))
    data = json.loads(path.read_text())
    assert sum(e["ph"] == "X" for e in data["traceEvents"]) == 5 and data["otherData"]["spans left out"] > 5
    with session.trace(path):
        pass
    assert events(path) == ([], {})


def test_calls_without_a_session_and_other_threads(tmp_path: Path) -> None:
    """A model's own calls are traced by thread; entries of a model come in one file."""
    layer = torch.nn.Linear(8, 8)
    rows = ({0: Dim("rows", max=99)},)
    a = torch.export.export(layer, (torch.randn(3, 8),), dynamic_shapes=rows)
    b = torch.export.export(torch.nn.Sequential(layer, torch.nn.ReLU()), (torch.randn(3, 8),), dynamic_shapes=rows)
    compiled = dhlo.compile({"first": a, "second": b})
    other = threading.Thread(target=lambda: compiled(torch.randn(9, 8)))
    with compiled.trace(tmp_path / "trace.json"):
        compiled["second"](torch.randn(4, 8))
        compiled(torch.randn(6, 8))
        other.start()
        other.join()
    runs = sorted((e for e in events(tmp_path / "trace.json")[0] if e["cat"] == "run"), key=lambda e: e["ts"])
    assert [(r["name"], r["args"]["input"]) for r in runs] == [("second", [4, 8]), ("first", [6, 8])]


def test_ends_behind_a_call_of_another_thread(model: dhlo.CompiledModel, tmp_path: Path) -> None:
    session, begun, ended = model.session(), threading.Event(), threading.Event()

    def work() -> None:
        while not ended.is_set():
            session(torch.randn(5000, 32))
            begun.set()

    thread = threading.Thread(target=work)
    with session.trace(tmp_path / "trace.json"):
        thread.start()
        begun.wait()
    ended.set()
    thread.join()
    assert sum(e["cat"] == "run" for e in events(tmp_path / "trace.json")[0]) >= 1


def test_command_line(model: dhlo.CompiledModel, tmp_path: Path) -> None:
    path, trace = tmp_path / "model.so", tmp_path / "trace.json"
    model.save(path)
    done = CliRunner().invoke(app, ["run", str(path), "--shape", "rows=3", "--repeat", "4", "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert [e["args"]["x"] for e in events(trace)[0] if e["cat"] == "run"] == [[3, 32]] * 4


def test_inputs_called_as_what_is_said_of_runs() -> None:
    told = _Events.__new__(_Events)
    told.inputs = [{"name": name, "dtype": "float32", "sizes": (-1,), "dims": ("n",)} for name in ("run", "status", "x")]
    (event,) = told.of([(0, "model", 10, 15, 7, -1, 0, 0, 11, 3)], [((2,), (3,), (4,))], {})
    assert event["args"] == {"run": 7, "input run": [2], "input status": [3], "x": [4], "status": 3}
