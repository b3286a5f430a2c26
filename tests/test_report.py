"""The report of a model: what is in the page, and, where there is a Chromium, what a reader sees and does."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch.export import Dim
from torch.utils._sympy import functions as tsf

import dhlo
from dhlo.cli import app
from dhlo.errors import DhloError
from dhlo.ir.symbols import evaluate, parse, symbol
from dhlo.model_file import ModelInfo
from dhlo.report import read_profile, render_report
from dhlo.report.expressions import tree_of
from tests.chromium import EXECUTABLE, Browser
from tests.conftest import Example

SHAPES = [(1, 1), (3, 17), (16, 64)]


@pytest.fixture(scope="module")
def model(encoder: Example) -> dhlo.CompiledModel:
    return dhlo.compile(encoder.exported, name="encoder")


@pytest.fixture(scope="module")
def profile(model: dhlo.CompiledModel) -> dict[str, Any]:
    """A profile of round numbers: a microsecond a group."""
    meta = json.loads(model.metadata)
    (level,) = meta["levels"]
    times = {"launches": 1, "seconds": 1e-6, "flops": 1e4, "bytes": 1e3, "floor": 5e-7, "predicted": 1e-6}
    groups = [
        {"group": n, "kernels": [level["launches"][first]], **times}
        for n, (first, end) in enumerate(level["groups"])
        if end > first
    ]
    ceilings = {"f32_gflops": 100.0, "bf16_gflops": 200.0, "l2_gbs": 400.0, "l3_gbs": 200.0, "dram_gbs": 50.0}
    points = [{"label": "batch=2,seq=8", "sizes": {"batch": 2, "seq": 8}, "groups": groups}]
    found = {"model": "encoder", "entry": "", "level": level["name"], "machine": "a CPU", "threads": 2}
    return found | {"ceilings": ceilings, "caches": {"2": 1 << 20}, "points": points}


def content(page: str) -> Any:
    return json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0])


# ------------------------------------------------------------------------------------------------ the metadata
def test_groups_say_where_they_come_from(model: dhlo.CompiledModel) -> None:
    """Lines of the user's files without folders of this machine, modules, and what each group reads."""
    meta = json.loads(model.metadata)
    assert all(re.fullmatch(r"transformers/[\w/]+\.py:\d+", s) or s.startswith("torch/") for s in meta["sources"]), meta["sources"]
    modules = [g["module"] for g in meta["groups"]]
    assert "bert.embeddings.LayerNorm" in modules and "bert.encoder.layer.1.output.dense" in modules
    products = [g for g in meta["groups"] if g["anchor"] == "matmul"]
    assert all(any(str(r).startswith("constant ") for r in g["reads"]) for g in products)
    assert all(len(g["lines"]) == len(g["ops"]) and max(g["lines"]) < len(meta["sources"]) for g in meta["groups"])
    assert "argument ids" in {r for g in meta["groups"] for r in g["reads"]}
    assert all(r < n for n, g in enumerate(meta["groups"]) for r in g["reads"] if isinstance(r, int))
    assert str(Path(__file__).parents[1]) not in model.metadata


def arena_bytes(level: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    """As the metadata's description says: buffers lie behind those before them that live at the same time."""
    buffers, totals = level["arena"], dict[int, list[int]]()
    nbytes = [evaluate(parse(b["bytes"]), sizes) for b in buffers]
    for a in level["arrangements"]:
        ends: dict[int, int] = {}
        for n in a["order"]:
            meets = [m for m in ends if buffers[m]["first"] <= buffers[n]["last"] and buffers[n]["first"] <= buffers[m]["last"]]
            ends[n] = max((ends[m] for m in meets), default=0) + nbytes[n]
        totals.setdefault(a["segment"], []).append(max(ends.values(), default=0))
    return sum(min(t) for t in totals.values())


def test_arena_follows_from_the_metadata(model: dhlo.CompiledModel) -> None:
    (level,) = json.loads(model.metadata)["levels"]
    for batch, seq in SHAPES:
        assert arena_bytes(level, {"batch": batch, "seq": seq}) == model.plan([batch, seq], [batch, seq])["arena_bytes"]


# ------------------------------------------------------------------------------------------------ the page
def test_page_is_self_contained(model: dhlo.CompiledModel, profile: dict[str, Any], tmp_path: Path) -> None:
    page = model.report(tmp_path / "report.html", profile=profile)
    assert (tmp_path / "report.html").read_text() == page
    addresses = set(re.findall(r"\w+://[^\s\"'`]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in page and "@import" not in page and " src=" not in page
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    for kind, tag in (("style", "<style>"), ("script", "<script>")):
        text = page.split(tag)[1].split("</")[0] if kind == "style" else page.split(tag)[-1].split("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    data = content(page)
    assert data["entries"][""]["name"] == "encoder" and data["profile"]["points"][0]["label"] == "batch=2,seq=8"
    assert all(tree is not None for _, tree in data["expressions"])


def test_names_stay_text() -> None:
    """What a file says can't become markup or script."""
    evil = "</script><script>alert(1)</script><!--{{script}}"
    value = {"name": evil, "dtype": "float32", "sizes": [-1], "dims": [evil]}
    level = {"name": "", "cpu_features": "", "launches": [], "groups": [], "arena": [], "arrangements": []}
    meta = {
        "name": evil,
        "entry": "",
        "producer": evil,
        "inputs": [value],
        "outputs": [value],
        "constants_bytes": 0,
        "state_bytes": 0,
    }
    meta |= {"symbols": {evil: [0, None]}, "states": {}, "checks": [], "groups": [], "sources": [evil], "levels": [level]}
    page = render_report({"": ModelInfo.of(meta)}, {evil: evil})
    assert page.count("</script>") == 2 and page.count("<script") == 2 and "<!--" not in page
    data = content(page)
    assert data["entries"][""]["name"] == evil and data["expressions"] == [[evil, None]]


def test_profiles_of_other_models_are_refused(model: dhlo.CompiledModel, profile: dict[str, Any], tmp_path: Path) -> None:
    for change, message in (
        ({"entry": "decode"}, "entry 'decode'"),
        ({"level": "x86-64-v9"}, "another model"),
        (
            {"points": [profile["points"][0] | {"groups": [profile["points"][0]["groups"][0] | {"kernels": ["other"]}]}]},
            "another model",
        ),
        ({"points": 3}, "malformed"),
    ):
        with pytest.raises(DhloError, match=message):
            model.report(profile=profile | change)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    assert read_profile(path) == profile
    path.write_text("[")
    with pytest.raises(DhloError, match="is not a profile"):
        model.report(profile=path)
    with pytest.raises(DhloError, match="can't be read"):
        read_profile(tmp_path / "none.json")


def test_command_line(tmp_path: Path) -> None:
    """bench writes a profile that inspect shows beside the file's facts, of all entries."""
    from typer.testing import CliRunner

    path, prof, page = tmp_path / "two.so", tmp_path / "profile.json", tmp_path / "report.html"
    layer = torch.nn.Linear(8, 8)
    rows = ({0: Dim("rows", max=99)},)
    a = torch.export.export(layer, (torch.randn(3, 8),), dynamic_shapes=rows)
    b = torch.export.export(torch.nn.Sequential(layer, torch.nn.ReLU()), (torch.randn(3, 8),), dynamic_shapes=rows)
    dhlo.compile({"first": a, "second": b}).save(path)
    run = CliRunner().invoke
    assert (
        run(
            app, ["bench", str(path), "--shape", "rows=5", "--budget", "0.01", "--threads", "1", "--save-profile", str(prof)]
        ).exit_code
        == 0
    )
    (point,) = read_profile(prof)["points"]
    assert point["sizes"] == {"rows": 5} and point["groups"][0]["group"] == 0 and point["groups"][0]["seconds"] > 0
    done = run(app, ["inspect", str(path), "--html", str(page), "--profile", str(prof)])
    assert done.exit_code == 0, done.output
    data = content(page.read_text())
    assert list(data["entries"]) == ["first", "second"] and "all sections verified" in data["facts"]["SHA-256"]
    assert run(app, ["inspect", str(path), "--profile", str(prof)]).exit_code == 1


def expressions() -> list[sympy.Expr]:
    x, y = symbol("s0"), symbol("s1")
    texts = """64*floordiv(8*s0 + 63, 64) | max(s0, s1, 3)*min(s0, 7) | mod(s0, 5) + ceildiv(s1, 3) | s0**2 - s1*3
        | cleandiv(6*s0, 3) | ite(s0 < s1, s0, 2*s1) | ite(And(Eq(mod(s0, 2), 0), Ne(s1, 3)), 1, 0)
        | ite(Or(s0 >= 9, Not(s1 <= 2)), s0, s1) | pymod(-s0, 7) | floordiv(-s0, 4) | abs(s0 - s1) | pow(2, min(s1, 9))
        | shl(s0, 3) + shr(s1, 1) | trunc(truediv(s0, 4)) | ceil(sqrt(float(s0))) | floor(log2(float(s0 + 1)))
        | round(truediv(s0, 2)) | trunc(fdiv(float(s0), 3.0)) | trunc(fpow(float(s0), 2.0)) | s0 > s1 | true"""
    return [parse(t.strip()) for t in texts.split("|")] + [x / 3 * 6, sympy.floor(x / 4), tsf.FloorDiv(x, y)]


def test_expressions_have_trees_that_the_page_knows() -> None:
    script = (Path(dhlo.__file__).parent / "report" / "assets" / "sizes.js").read_text()
    known = set(re.findall(r'^  "?([\w+*]+)"?: ', script.split("};")[0], re.MULTILINE)) | {"ite"}

    def names(tree: Any) -> set[str]:
        return {tree[0]}.union(*map(names, tree[1:])) if isinstance(tree, list) else set()

    assert len(known) > 25
    for e in expressions():
        assert names(tree_of(e)) <= known, e


# ------------------------------------------------------------------------------------------------ in a browser
@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if EXECUTABLE is None:
        pytest.skip("no Chromium is installed")
    made = Browser(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser, model: dhlo.CompiledModel, profile: dict[str, Any], tmp_path: Path) -> Browser:
    model.report(tmp_path / "report.html", profile=profile)
    browser.open(f"file://{tmp_path}/report.html")
    assert browser.errors == [] and browser.requests == [f"file://{tmp_path}/report.html"]
    return browser


def test_sizes_in_the_page_are_the_runtimes(page: Browser, model: dhlo.CompiledModel) -> None:
    """Sliders and the address choose sizes, at which the page computes what the model's own plan says."""
    segment = "[...document.querySelectorAll('[data-segment]')].map((x) => Number(x.dataset.bytes))"
    for batch, seq in SHAPES:
        for name, size in (("batch", batch), ("seq", seq)):
            row = f"document.querySelector('[data-symbol={name}] input[type=number]')"
            page.evaluate(f"{row}.value = {size}; {row}.dispatchEvent(new Event('change')); 0")
        plan = model.plan([batch, seq], [batch, seq])
        assert sum(page.evaluate(segment)) == plan["arena_bytes"]
        assert page.evaluate("arena.layout(chosen.env).peak") == plan["peak_live_bytes"]
        assert f"{batch} × {seq} × 48" in page.evaluate("document.getElementById('contract').textContent")
    fragment = page.evaluate("location.hash")
    page.evaluate("choose({ env: new Map([...chosen.env.keys()].map((k) => [k, 1])), group: 0 }, false); location.hash = ''; 0")
    page.evaluate(f"location.hash = {json.dumps(fragment)}; 0")
    page.wait_for("chosen.env.get('seq') === 64 && chosen.env.get('batch') === 16")
    slider = "document.querySelector('[data-symbol=seq] input[type=range]')"
    page.evaluate(f"{slider}.focus(); 0")
    page.press("ArrowLeft")
    assert page.evaluate("[chosen.env.get('seq'), document.activeElement.getAttribute('aria-valuetext')]") == [63, "63"]
    page.press("ArrowRight")
    page.press("ArrowRight")  # the range ends at 64
    assert page.evaluate("chosen.env.get('seq')") == 64


def test_expressions_in_the_page_are_pythons(page: Browser) -> None:
    for a, b in ((0, 1), (7, 3), (12, 12), (1000, 9)):
        for e in expressions():
            got = page.evaluate(f"evaluate({json.dumps(tree_of(e))}, new Map([['s0', {a}], ['s1', {b}]])) + 0")
            assert got == evaluate(e, {"s0": a, "s1": b}), (e, a, b)


def test_keys_go_through_groups_and_nothing_jumps(page: Browser, model: dhlo.CompiledModel) -> None:
    count = len(json.loads(model.metadata)["groups"])
    places = "['groups', 'memory', 'roofline'].map((id) => document.getElementById(id).getBoundingClientRect().top + scrollY)"
    page.evaluate("document.getElementById('rows').focus(); 0")
    before, seen = page.evaluate(places), list[int]()
    for _ in range(3):
        page.press("ArrowDown")
        seen.append(page.evaluate("chosen.group"))
        assert f"Group {seen[-1]} " in page.evaluate("document.getElementById('detail').textContent")
        assert page.evaluate("document.getElementById('rows').getAttribute('aria-activedescendant')") == f"group-{seen[-1]}"
    page.press("End")
    assert [*seen, page.evaluate("chosen.group")] == [1, 2, 3, count - 1]
    assert page.evaluate("document.querySelectorAll('.buffer.now, .point.now').length") >= 1
    page.press("/", "/")
    for letter in "softmax":
        page.press(letter, letter)
    page.evaluate("choose({ query: 'attention.self' }); 0")
    found = page.evaluate("visible.map((n) => entry().groups[n].module)")
    assert 0 < len(found) < count and all("attention.self" in m for m in found)
    assert page.evaluate(places) == before
    page.press("Escape")
    assert page.evaluate("visible.length") == count
    page.evaluate("document.querySelector('#facets button:nth-child(3)').click(); document.getElementById('facet').focus(); 0")
    page.press("ArrowDown")
    kernel = page.evaluate("chosen.filter")
    assert page.evaluate("visible.every((n) => kernelsOf(n).includes(chosen.filter))") and kernel in model.native.launches
    assert page.evaluate(places) == before and page.errors == []


def test_light_dark_and_narrow(page: Browser, tmp_path: Path) -> None:
    """Both themes have readable text, and nothing needs scrolling sideways."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.evaluate("document.getElementById('theme').click(); 0")
    dark = page.evaluate(ground)
    assert light == "rgb(255, 255, 255)" and max(map(int, re.findall(r"\d+", dark))) < 40
    assert page.evaluate("document.querySelectorAll('.point').length") > 5
    for width in (1400, 900, 420):
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
