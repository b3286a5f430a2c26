"""Rows whose last vector has one element, of fewer bits in memory than in registers: nothing behind them is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dhlo.ir.dialect import build
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.movement import Broadcast
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
        def body(x: Any, row: Any) -> list[Any]:
            rows = build(Broadcast, [row], {"dims": [1]}, results=[t(source, "n", width)]).results[0]
            total = build(ew.Add, [x, rows]).results[0]
            return [build(ew.Convert, [total], results=[t(narrow, "n", width)]).results[0]]

        args = [(t(source, "n", width), within(0, 20)), (t(source, width), within(0, 20))]
        return Part(args, body, label=f"{source} {narrow} {width}")

    module = Module([part(width) for width in (9, 17, 33, 65)], {})
    _, artifact = module.compile()

    def between_guard_pages(note: Callable[[str], None]) -> None:
        with guarded(artifact, 1) as run:
            for n in (1, 2, 3, 16):
                note(f"n={n}")
                module.check(run, {"n": n, "m": 1}, 0)

    isolated(between_guard_pages)
