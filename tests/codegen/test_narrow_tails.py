"""Rows whose last vector has one element, of fewer bits in memory than in registers: nothing behind them is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dhlo.ir.dialect import build
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.types import TensorType
from tests.fuzz.guarded import guarded, isolated
from tests.programs import Module, Part, t, within

KINDS = (
    ("f32", "ui8"),
    ("f32", "i8"),
    ("f32", "i16"),
    ("i32", "i8"),
    ("i64", "i32"),
    ("i64", "ui8"),
    ("f32", "bf16"),
    ("f64", "i32"),
)


@pytest.mark.parametrize(("source", "narrow"), KINDS)
def test_one_element_is_left(source: str, narrow: str) -> None:
    def part(width: int) -> Part:
        def body(x: object, y: object) -> list[object]:
            total = build(ew.Add, [x, y]).results[0]
            return [build(ew.Convert, [total], results=[TensorType.of(narrow, [*t(source, "n", width).shape])]).results[0]]

        return Part([(t(source, "n", width), within(0, 20))] * 2, body, label=f"{source} {narrow} {width}")

    module = Module([part(width) for width in (1, 9, 17, 33, 65)], {})
    model, artifact = module.compile()
    module.check(model, {"n": 3, "m": 1}, 0)

    def between_guard_pages(note: Callable[[str], None]) -> None:
        with guarded(artifact, 1) as run:
            for n in (1, 2, 3):
                note(f"n={n}")
                module.check(run, {"n": n, "m": 1}, 0)

    isolated(between_guard_pages)
