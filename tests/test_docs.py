"""The IR in docs/architecture.md is what the compiler makes of the program on the same page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import dhlo
from dhlo import compiler
from dhlo.codegen.kernel_ir.builder import KernelModule
from dhlo.codegen.kernel_ir.split import Part
from dhlo.codegen.target import native
from dhlo.frontend import import_program
from tests.goldens import Golden

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- ir: (\w+) -->\n```\w*\n)(.*?)(```)", re.DOTALL)


def test_architecture(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    blocks = make_blocks(page, monkeypatch)
    assert [name for _, name, _, _ in BLOCK.findall(page)] == list(blocks)
    golden(PAGE, BLOCK.sub(lambda m: f"{m[1]}{blocks[m[2]]}\n{m[4]}", page))


def test_architecture_names_what_exists() -> None:
    """Files and folders in backquotes."""
    root = PAGE.parents[1]
    for name in re.findall(r"`((?:dhlo|frontend|codegen|shape_infer|runtime|tests)/[\w/.]*)`", PAGE.read_text()):
        assert (root / name).exists(), name


def make_blocks(page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The program's IR at each stage, by the name of the block on the page, in the page's order."""
    names: dict[str, object] = {"torch": torch}
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(source, names)
    exported = names["exported"]
    assert isinstance(exported, torch.export.ExportedProgram)
    functions: dict[str, str] = {}
    split = compiler.split_module

    def seen(module: KernelModule, parts: int) -> list[Part]:
        functions.update({n.partition(".")[0]: x.text() for n, x in module.functions.items()})
        return split(module, parts)

    monkeypatch.setattr(compiler, "split_module", seen)
    imported = str(import_program(exported).module)
    after: dict[str, str] = {}
    if "avx512f" not in native().features:
        pytest.skip("the page shows code for x86-64-v4")
    compiled = dhlo.compile(exported, dump=after.__setitem__, target="x86-64-v4")
    simplified = shorten(after["own-results"]).splitlines()
    product = next(n for n, line in enumerate(simplified) if "dhlo.matmul" in line)
    (softmax,) = (text for name, text in functions.items() if name.startswith("reduce_"))
    return {
        "type": re.findall(r"tensor<.*?>>", imported)[0],
        "imported": shorten(imported),
        "simplified": "\n".join([*simplified[: product + 1], "    ..."]),
        "planned": shorten(compiled.planned),
        "kernel": inner_loop(softmax),
        "contract": first_check(functions["dhlo_run"]),
        "launch": launch(functions["dhlo_run"]),
        "signature": compiled.signature.rstrip(),
    }


def shorten(text: str) -> str:
    """Types as f32[s77, 10]; no segment sizes."""
    text = re.sub(r",? ?(operand|result)SegmentSizes = array<[^>]*>", "", text).replace(" {}", "")

    def short(m: re.Match[str]) -> str:
        dims = m[3].replace('"', "") if m[3] else m[1].rstrip("x").replace("x", ", ")
        return f"{m[2]}[{dims}]"

    text = re.sub(r"tensor<((?:[\d?]+x)*)(\w+)(?:, #dhlo.shape<\[(.*?)\]>)?>", short, text)
    return text.strip()


def inner_loop(kernel: str) -> str:
    """The loop that computes one vector of exponentials at a time."""
    lines = kernel.splitlines()
    starts = [n for n, line in enumerate(lines) if "scf.for" in line]
    for n in starts:
        indent = re.match(r" *", lines[n])[0]  # type: ignore[index]
        end = next(k for k in range(n + 1, len(lines)) if lines[k] == indent + "}")
        body = lines[n : end + 1]
        if sum("@vm_exp" in line for line in body) == 1:
            return "\n".join(line.removeprefix(indent) for line in body)
    raise AssertionError("the kernel has no such loop")


def first_check(run: str) -> str:
    """The check of the first argument's rank."""
    lines = [line.removeprefix("  ") for line in run.splitlines()]
    first = next(n for n, line in enumerate(lines) if "cond_br" in line)
    start = max(n for n in range(first) if "%inputs" in lines[n])
    end = next(n for n in range(first, len(lines)) if lines[n].startswith("^ok"))
    return "\n".join(lines[start : end + 1])


def launch(run: str) -> str:
    """The launch of the softmax: arguments into an array, items, grain, scratch bytes."""
    lines = [line.removeprefix("  ") for line in run.splitlines()]
    start = next(n for n, line in enumerate(lines) if "addressof @reduce_" in line)
    end = next(n for n in range(start, len(lines)) if "llvm.call" in lines[n])
    return "\n".join(lines[start : end + 1])


def test_tests_that_the_security_page_names_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    named = set(re.findall(r"`((?:dhlo|tests|shape_infer)/[\w/.]+)`", (root / "docs/security.md").read_text()))
    assert len(named) > 10
    assert not [n for n in sorted(named) if not (root / n).exists()]
