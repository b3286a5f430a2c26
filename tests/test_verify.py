"""Symbols are defined once and before use: what is refused, and that every pass is held to it."""

from __future__ import annotations

from typing import Any

import pytest

from dhlo.errors import CompileError, InternalError
from dhlo.ir.context import context
from dhlo.ir.mlir import ir
from dhlo.pipeline import Pass, run_passes
from dhlo.shape_infer.verify import misused_symbol
from dhlo.texts import read_module

HEAD = 'func.func @main(%x: tensor<?xf32, #dhlo.shape<["n"]>>, %k: tensor<i64>, %p: tensor<i1>) {\n'
SEGMENTS = "array<i32: 1" + ", 0" * 23 + ">"
ITEM = '"dhlo.item"(%k) {symbol = "u0"} : (tensor<i64>) -> ()\n'


def full(size: str, value: str = "0", name: str = "y") -> str:
    return f'%{name} = "dhlo.full"() {{value = "{value}"}} : () -> tensor<?xf32, #dhlo.shape<["{size}"]>>\n'


def branch(then: str) -> str:
    """A branch whose first region holds `then` and gives %a."""
    end = f'"dhlo.yield"(%a) {{operandSegmentSizes = {SEGMENTS}}} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> ()\n'
    other = full("n", name="a") + end
    result = 'tensor<?xf32, #dhlo.shape<["n"]>>'
    return (
        f'%c = "dhlo.cond"(%p) ({{\n{then}{full("n", name="a")}{end}}}, {{\n{other}}}) '
        f"{{resultSegmentSizes = {SEGMENTS}}} : (tensor<i1>) -> {result}\n"
    )


GOOD = {
    "sizes of arguments": full("2*n + 1", "n"),
    "a number that is defined": ITEM + full("u0", "u0*n"),
    "a number for a branch": ITEM + branch(full("u0", name="b")),
    "a number of a branch": branch(ITEM + full("u0", name="b")),
}
BAD = {
    "a size that nothing defines": (full("m"), "the symbol m of a result is used before it is defined"),
    "a value that nothing defines": (full("n", "m"), "the symbol m is used before it is defined"),
    "a condition of what nothing defines": (
        '"dhlo.assert"() {condition = "n < m", message = ""} : () -> ()',
        "the symbol m is used before it is defined",
    ),
    "a start that nothing defines": (
        '%y = "dhlo.slice"(%x) {starts = ["m"], steps = [1]} '
        ': (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>',
        "the symbol m is used before it is defined",
    ),
    "a use before the definition": (full("u0") + ITEM, "the symbol u0 of a result is used before it is defined"),
    "two definitions": (ITEM + ITEM, "the symbol u0 is defined twice"),
    "an argument's size defined again": (ITEM.replace("u0", "n"), "the symbol n is defined twice"),
    "a use outside of the branch that defines it": (branch(ITEM) + full("u0"), "the symbol u0 of a result is used before"),
    "a definition in a branch of what is defined": (ITEM + branch(ITEM), "the symbol u0 is defined twice"),
}


def text(body: str) -> str:
    return f"module {{\n{HEAD}{body}\nreturn\n}}\n}}\n"


@pytest.mark.parametrize("case", GOOD)
def test_symbols_with_one_definition_before_their_use(case: str) -> None:
    with context():
        assert misused_symbol(read_module(text(GOOD[case]), "file.mlir")) is None


@pytest.mark.parametrize("case", BAD)
def test_misused_symbols_are_refused_with_their_line(case: str) -> None:
    body, message = BAD[case]
    with context(), pytest.raises(CompileError, match=rf"file\.mlir:\d+:\d+: dhlo\.\w+: {message}"):
        read_module(text(body), "file.mlir")


def test_a_pass_that_loses_a_definition_is_named() -> None:
    def lose_items(module: Any, weights: Any) -> None:
        for op in list(module.body.operations[0].regions[0].blocks[0].operations):
            if op.operation.name == "dhlo.item":
                op.operation.erase()

    with context():
        module = ir.Module.parse(text(ITEM + full("u0")))
        with pytest.raises(InternalError, match=r"(?s)pass lose-items left an invalid module: dhlo.full at .*the symbol u0"):
            run_passes(module, {}, (Pass("lose-items", lose_items),))


def test_what_the_importer_makes_is_verified() -> None:
    with context():
        with pytest.raises(InternalError, match="the importer made an invalid module: dhlo.full at .*the symbol u0"):
            run_passes(ir.Module.parse(text(full("u0"))), {}, ())


def test_verified_once_for_a_row_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without DHLO_VERIFY_PASSES a row of passes is verified at its end, and the error names the row."""
    monkeypatch.delenv("DHLO_VERIFY_PASSES")
    seen: list[str] = []

    def lose_items(module: Any, weights: Any) -> None:
        for op in list(module.body.operations[0].regions[0].blocks[0].operations):
            if op.operation.name == "dhlo.item":
                op.operation.erase()

    row = (Pass("lose-items", lose_items), Pass("next", lambda module, weights: seen.append("next")))
    with context():
        module = ir.Module.parse(text(ITEM + full("u0")))
        with pytest.raises(
            InternalError, match="one of the passes lose-items to next .DHLO_VERIFY_PASSES=1 tells which. left an invalid"
        ):
            run_passes(module, {}, row)
    assert seen == ["next"]
