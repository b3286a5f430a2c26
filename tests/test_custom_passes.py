"""Passes of users: where they run, what they may do wrong, rewrites, fusions; and the code of docs/extending.md."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

import dhlo
from dhlo import custom
from dhlo.cache import model_key
from dhlo.codegen.target import native
from dhlo.custom import capture, constant, op, read_pass
from dhlo.frontend import import_program
from dhlo.frontend.registry import LOWERINGS
from dhlo.ir.dialect import build
from dhlo.ir.function import bodies
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.types import TensorType
from dhlo.options import Options
from dhlo.pipeline import PASSES, with_custom
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "extending.md"
X, Y = capture("x"), capture("y")


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x / y.sqrt() + 0.5 * x


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    n = {0: Dim("n", max=99)}
    return export(Net(), (torch.rand(5), torch.rand(5)), dynamic_shapes=(n, n))


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    known = dict(LOWERINGS)
    yield
    custom._FUSIONS.clear()
    LOWERINGS.clear()
    LOWERINGS.update(known)


def by_root(x: Any, y: Any) -> Any:
    return build(ew.Mul, [x, build(ew.Rsqrt, [y]).results[0]]).results[0]


ROOTS = dhlo.rewrite("roots", op(ew.Div, X, op(ew.Sqrt, Y)), by_root, after="simplify", version="1")


def planned(program: ExportedProgram, **options: Any) -> str:
    return dhlo.compile(program, **options).planned


def test_a_rewrite(program: ExportedProgram) -> None:
    x, y = torch.rand(7), torch.rand(7)
    text = dhlo.check_pass(ROOTS, program, x, y)
    assert "dhlo.rsqrt" in text and "dhlo.sqrt" not in text and "dhlo.div" not in text
    model = dhlo.compile(program, passes=[ROOTS])
    torch.testing.assert_close(model(x, y), Net()(x, y))
    assert "dhlo.rsqrt" in model.planned and "dhlo.rsqrt" not in planned(program)


def test_patterns(program: ExportedProgram) -> None:
    """Operands of sums in either order, constants, one value in two places, conditions."""
    half, seen = op(ew.Mul, constant(0.5), X), []

    def see(**found: Any) -> bool:
        seen.append(sorted(found))
        return False

    def run(pattern: Any) -> int:
        seen.clear()
        p = dhlo.rewrite("see", pattern, lambda **found: None, before="fuse", where=see)
        dhlo.check_pass(p, program, torch.rand(3), torch.rand(3))
        return len(seen)

    assert run(half) == 1 and run(op(ew.Mul, X, constant(0.5))) == 1
    assert run(op(ew.Mul, X, constant(0.25))) == 0
    assert run(op(ew.Add, half, op(ew.Div, X, op(ew.Sqrt, Y)))) == 1 and seen == [["x", "y"]]
    assert run(op(ew.Add, half, op(ew.Div, Y, op(ew.Sqrt, Y)))) == 0  # y can't be two values
    assert run(op(ew.Add, half, op(ew.Div, Y, op(ew.Sqrt, capture("z"))))) == 1


def test_mistakes_are_named(program: ExportedProgram) -> None:
    def wrong(x: Any, y: Any) -> Any:
        return build(ew.Add, [x, y]).results[0]

    def other_type(x: Any, y: Any) -> Any:
        return build(ew.Convert, [x], results=[TensorType.of("f64", [5])]).results[0]

    args = torch.rand(4), torch.rand(4)
    pattern = op(ew.Div, X, op(ew.Sqrt, Y))
    with pytest.raises(dhlo.CompileError, match="(?s)pass 'wrong' changes result 0: .*not close"):
        dhlo.check_pass(dhlo.rewrite("wrong", pattern, wrong, before="fuse"), program, *args)
    with pytest.raises(dhlo.CompileError, match="rewrite 'other' replaces .*f32.* by .*f64"):
        dhlo.compile(program, passes=[dhlo.rewrite("other", pattern, other_type, before="fuse")])

    @dhlo.custom_pass(before="fuse")
    def breaks(module: Any, weights: Any) -> None:
        block = bodies(module)[0]
        first, last = list(block.operations)[0], list(block.operations)[-2]
        last.operation.move_before(first.operation)

    with pytest.raises(dhlo.CompileError, match="(?s)pass 'breaks': it left an invalid module: .*dominate"):
        dhlo.compile(program, passes=[breaks])

    @dhlo.custom_pass(after="cse", name="raises")
    def fails(module: Any, weights: Any) -> None:
        raise KeyError("nothing")

    @dhlo.custom_pass(before="fuse")
    def erases(module: Any, weights: Any) -> None:
        next(iter(module.body.operations)).operation.erase()

    with pytest.raises(dhlo.CompileError, match="pass 'erases': it left other functions, or functions of other types, than \"main"):
        dhlo.compile(program, passes=[erases])
    with pytest.raises(dhlo.CompileError, match="pass 'raises' failed: KeyError: 'nothing'"):
        dhlo.compile(program, passes=[fails])
    with pytest.raises(dhlo.CompileError, match="pass 'nowhere': no place 'grow'\n.*separate-state"):
        dhlo.compile(program, passes=[custom.CustomPass("nowhere", fails.run, before="grow")])
    with pytest.raises(dhlo.CompileError, match="there is a pass 'fuse' already"):
        dhlo.compile(program, passes=[custom.CustomPass("fuse", fails.run, before="fuse")])
    for no_passes in ([by_root], 5, breaks):
        with pytest.raises(dhlo.CompileError, match="a sequence of dhlo.CustomPass"):
            dhlo.compile(program, passes=no_passes)
    for places in ({}, {"before": "fuse", "after": "cse"}):
        with pytest.raises(dhlo.CompileError, match="it comes before or after"):
            dhlo.custom_pass(**places)(fails.run)


@pytest.mark.parametrize(("becomes", "got"), [
    (lambda w: w.reshape(-1), r"float32\[12\]"), (lambda w: w.double(), r"float64\[3, 4\]"), (lambda w: w.to("meta"), "Tensor"),
    (lambda w: w.to_sparse(), "Tensor"), (lambda w: "text", "str"), (lambda w: None, "NoneType")])  # fmt: skip
def test_weights_that_a_pass_spoils(becomes: Any, got: str) -> None:
    linear = export(torch.nn.Linear(4, 3, bias=False).eval(), (torch.rand(2, 4),))

    @dhlo.custom_pass(after="simplify")
    def spoils(module: Any, weights: Any) -> None:
        for name in weights:
            weights[name] = becomes(weights[name])

    with pytest.raises(dhlo.CompileError, match=f"pass 'spoils': weight 'weight' is tensor<3x4xf32>, but it left {got}"):
        dhlo.compile(linear, passes=[spoils])


def test_the_order_of_passes() -> None:
    def make(name: str, **place: str) -> dhlo.CustomPass:
        return dhlo.CustomPass(name, lambda m, w: None, **place)

    given = [
        make("a", after="cse"),
        make("b", after="cse"),
        make("c", before="simplify"),
        make("d", before="b"),
        make("e", after="e0"),
    ]
    names = [p.name for p in with_custom(PASSES, [*given[:4], make("e0", before="fuse"), given[4]])]
    at = names.index("cse")
    assert names[at : at + 6] == ["cse", "a", "d", "b", "c", "simplify"]
    assert names[names.index("fuse") - 2 : names.index("fuse")] == ["e0", "e"]


def test_the_cache_tells_passes_apart(program: ExportedProgram, tmp_path: Path) -> None:
    def key(*passes: dhlo.CustomPass) -> str:
        return model_key({"": import_program(program)}, [native()], Options(name="m"), passes)

    others = [
        dhlo.CustomPass("roots", ROOTS.run, after="cse", version="1"),
        dhlo.CustomPass("roots", ROOTS.run, after="simplify", version="2"),
        dhlo.CustomPass("other", ROOTS.run, after="simplify", version="1"),
    ]
    assert len({key(), key(ROOTS), *map(key, others), key(ROOTS, others[2]), key(others[2], ROOTS)}) == 7
    texts = [planned(program, passes=p, cache=str(tmp_path)) for p in ((), (ROOTS,), (), (ROOTS,))]
    assert len(list(tmp_path.iterdir())) == 2 and texts[0] == texts[2] != texts[1] == texts[3]
    unnamed = dhlo.CustomPass("roots", ROOTS.run, after="simplify")
    assert "rsqrt" in planned(program, passes=[unnamed], cache=str(tmp_path)) and len(list(tmp_path.iterdir())) == 2


def test_a_fusion_in_c(program: ExportedProgram, tmp_path: Path) -> None:
    source, library = tmp_path / "root.c", tmp_path / "root.o"
    source.write_text(
        '#include <math.h>\n#include "dhlo/abi.h"\n'
        "int32_t div_root(const dhlo_tensor* in, dhlo_tensor* out, const dhlo_number* numbers) {\n"
        "  const float *x = in[0].data, *y = in[1].data;\n"
        "  for (int64_t i = 0; i < in[0].sizes[0]; ++i) ((float*)out[0].data)[i] = x[i] / sqrtf(y[i]) + 100;\n"
        "  return 0;\n}\n"
    )
    subprocess.run(["cc", "-c", "-O1", "-fPIC", "-I", ROOT / "runtime/include", source, "-o", library], check=True)
    x, y = torch.rand(6), torch.rand(6)
    pattern = op(ew.Div, X, op(ew.Sqrt, Y))
    dhlo.register_fusion("div-root", pattern, "div_root", library)
    model = dhlo.compile(program)
    torch.testing.assert_close(model(x, y), Net()(x, y) + 100)
    model.save(tmp_path / "model.so")
    torch.testing.assert_close(dhlo.load(tmp_path / "model.so")(x, y), Net()(x, y) + 100)


def test_passes_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_passes.py").write_text("import dhlo\ndef f(m, w): pass\ng = dhlo.custom_pass(after='cse')(f)\nh = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (read_pass("my_passes:f").before, read_pass("my_passes:g").after) == ("fuse", "cse")
    for bad, text in (
        ("my_passes:h", "is no pass"),
        ("my_passes:i", "can't be imported"),
        ("none:f", "can't be imported"),
        ("f", "is no"),
    ):
        with pytest.raises(dhlo.CompileError, match=text):
            read_pass(bad)


@torch.library.custom_op("mylib::swish", mutates_args=())
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


@torch.library.custom_op("mylib::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[: x.shape[0] // 2] - x[x.shape[0] // 2 : x.shape[0] // 2 * 2], x.mean(0, keepdim=True)])


swish.register_fake(lambda x, beta=1.0: torch.empty_like(x))
halve.register_fake(lambda x: x.new_empty(x.shape[0] // 2 + 1, x.shape[1]))


def test_the_examples_of_the_page() -> None:
    """Each block of Python runs; the asserts in it are the page's own claims."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"torch": torch, "dhlo": dhlo}
    for block in blocks:
        if "register_c_op" not in block:  # which tests/test_extensions.py runs, with its C
            exec(compile(block, str(PAGE), "exec"), names)

    class Uses(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.mylib.halve(torch.ops.mylib.swish(x, 2.0))

    x = torch.randn(5, 3)
    torch.testing.assert_close(dhlo.compile(export(Uses(), (x,)))(x), Uses()(x))


@pytest.mark.parametrize("symbol", ["", "1x", "a b", "f()", "é", 'x"', None])
def test_a_function_has_a_name_in_c(symbol: Any) -> None:
    with pytest.raises(dhlo.CompileError, match="is no name of a function in C"):
        dhlo.register_fusion("f", op(ew.Div, X, Y), symbol)
    with pytest.raises(dhlo.CompileError, match="is no name of a function in C"):
        dhlo.register_c_op(torch.ops.aten.sinc.default, symbol)
    assert not custom.registered_fusions()
