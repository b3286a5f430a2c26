"""Levels in model files: which one a machine takes, and files whose levels aren't what they should be."""

from __future__ import annotations

import pytest

from dhlo import _runtime
from dhlo.codegen.kernel_ir.abi import MAX_LEVELS
from dhlo.model_file import features_text
from tests.runtime.conftest import BuildToy

HERE = "sse2" if _runtime.cpu_supports("sse2") else "neon"


def text(*levels: tuple[str, str]) -> str:
    return features_text([{"name": name, "cpu_features": features} for name, features in levels])


def test_the_last_that_can_run_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DHLO_TARGET", raising=False)
    assert _runtime.choose_level("") == 0
    assert _runtime.choose_level(text(("a", HERE))) == 0
    assert _runtime.choose_level(text(("a", HERE), ("b", ""), ("c", "nosuch"))) == 1
    with pytest.raises(RuntimeError, match="this processor lacks nosuch; the model was compiled for 'a', nosuch"):
        _runtime.choose_level(text(("a", "nosuch")))
    with pytest.raises(RuntimeError, match="lacks nosuch for 'b'; other for 'a'"):
        _runtime.choose_level(text(("a", "other"), ("b", "nosuch")))


def test_the_environment_names_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = text(("a", HERE), ("b+x+y", HERE), ("c", "nosuch"))
    for given, taken in {"a": 0, "b+y+x": 1, "a, b+x+y": 1, "native": 1, "": 1, "c,a": 0}.items():
        monkeypatch.setenv("DHLO_TARGET", given)
        assert _runtime.choose_level(levels) == taken, given
    for given, why in {
        "c": "lacks nosuch for 'c'",
        "d": "asks for 'd'; the model has the levels 'a', 'b",
        "a,,": "asks for ''",
    }.items():
        monkeypatch.setenv("DHLO_TARGET", given)
        with pytest.raises(RuntimeError, match=why):
            _runtime.choose_level(levels)
        assert _runtime.choose_level(text(("a", HERE))) == 0  # the only one: there is no choice


def test_hostile_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DHLO_TARGET", raising=False)
    assert _runtime.choose_level("\n" * (MAX_LEVELS - 1)) == MAX_LEVELS - 1
    with pytest.raises(RuntimeError, match="more than 16 levels"):
        _runtime.choose_level("\n" * MAX_LEVELS)
    for odd in (": ", ": : ", "a:", "a: b: c", ",,,", "x" * 100_000, ": " * 50_000):
        try:
            assert _runtime.choose_level(odd) == 0
        except RuntimeError as e:
            assert "lacks" in str(e)


def test_the_only_level_needs_no_name(build_toy: BuildToy) -> None:
    assert _runtime.Model.from_file(build_toy()).level == ""
