"""What tests keep of machine code is that of the same text, target and compiler, or made anew."""

from dataclasses import replace
from pathlib import Path

import pytest

from dhlo.codegen.backends.cpu import llvm
from dhlo.codegen.target import Target, native
from tests import kept_code


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(kept_code, "FOLDER", str(tmp_path))
    return []


def test_what_was_made_is_read(made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(text: str, target: Target) -> bytes:
        made.append(text)
        return text.encode() * 100

    step = kept_code.kept("step", make, bytes, bytes)
    assert [step("a", native()), step("a", native()), step("b", native())] == [b"a" * 100, b"a" * 100, b"b" * 100]
    assert made == ["a", "b"]
    for target in (replace(native(), tune="other"), replace(native(), dots={}), replace(native(), extras=frozenset({"x"}))):
        step("a", target)
    kept_code.kept("another", make, bytes, bytes)("a", native())
    monkeypatch.setattr(kept_code, "versions", lambda: "others")
    kept_code.kept("step", make, bytes, bytes)("a", native())
    assert made == ["a", "b", *"aaaaa"]
    for path in tmp_path.glob("??/*"):
        path.write_bytes(path.read_bytes()[:9])
    assert step("a", native()) == step("a", native()) == b"a" * 100
    assert made == ["a", "b", *"aaaaaa"]


def test_errors_are_not_kept(made: list[str]) -> None:
    def make(text: str, target: Target) -> bytes:
        made.append(text)
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            kept_code.kept("step", make, bytes, bytes)("a", native())
    assert made == ["a", "a"]


def test_the_compiler_is_asked_through_it() -> None:
    """Whoever imported its functions by name, as `dhlo.compiler` does."""
    import dhlo.compiler as compiler

    if kept_code.FOLDER in ("", "0"):
        pytest.skip("DHLO_KEPT_CODE=0")
    for name, common in (("compile_object", "compile_common"), ("lower_to_llvm_ir", "lower_common")):
        kept, remembered = getattr(compiler, name), getattr(compiler, common)
        assert kept is getattr(llvm, name) and kept.__wrapped__.__module__ == llvm.__name__
        assert remembered is getattr(llvm, common) and remembered.__wrapped__ is kept
