"""python -m benchmarks.mca: what llvm-mca predicts of the inner loops of code for aarch64, beside the bound of its pipelines.

No time is measured: the figures are cycles an iteration of LLVM's models of Neoverse V1 and V2, with all data in the first-level
cache. Needs an llvm-mca that knows these (LLVM 17 or newer; Debian's package llvm-19), or LLVM_MCA to name one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

from benchmarks import measure, report
from dhlo.api import build
from dhlo.codegen.backends.cpu.link import merged_assembly
from dhlo.options import Options

CPUS = ("neoverse-v1", "neoverse-v2")
# Of both: four pipelines for vector arithmetic, three for loads and two for stores of 128 bits.
ARITHMETIC, LOADS, STORES = 4, 3, 2
ITERATIONS = 1000
BAR = 0.90
DOCUMENT = measure.ROOT / "docs" / "performance.md"
D = Dim.DYNAMIC


@dataclass(frozen=True)
class Case:
    """A loop of a program: of the functions whose names match that with the most rows in its name, of its loops that with the most
    arithmetic."""

    name: str
    function: str
    program: str


class Columns(nn.Linear):
    """A linear layer of columns: its kernel packs them, where it reads a linear layer's rows in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.t())


class Bytes(nn.Module):
    """A product of int8 matrices, the right one constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 128, (768, 768), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, self.w)


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def _bytes() -> tuple[nn.Module, tuple[torch.Tensor, ...], Any]:
    return Bytes(), (torch.randint(-128, 128, (4, 768), dtype=torch.int8),), ({0: D},)


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...], Any]]] = {
    "linear": lambda: (nn.Linear(768, 768), (torch.randn(4, 768),), ({0: D},)),
    "columns": lambda: (Columns(768, 768), (torch.randn(768, 4),), ({1: D},)),
    "attention": lambda: (Attention(), (torch.randn(2, 4, 8, 64),) * 3, ({0: D, 2: D},) * 3),
    "convolution": lambda: (nn.Conv2d(64, 64, 3, padding=1), (torch.randn(2, 64, 9, 9),), ({0: D, 2: D, 3: D},)),
    "softmax": lambda: (nn.Softmax(-1), (torch.randn(3, 5),), ({0: D, 1: D},)),
    "bytes, dotprod": _bytes,
    "bytes, i8mm": _bytes,
}
EXTRAS = {"bytes, dotprod": ["dotprod"], "bytes, i8mm": ["dotprod", "i8mm"]}
"""What the target of a program has besides."""
CASES = [
    Case("product, panel of A", r"ukr_f32_(?P<rows>\d+)(_placed)?(_of\d+)?_ahead", "columns"),
    Case("product, rows of A in place", r"ukr_f32_(?P<rows>\d+)_rows(_placed)?(_of\d+)?_ahead", "linear"),
    Case("attention, many queries: Q K^T", r"ukr_f32_(?P<rows>\d+)_rows(_placed)?(_of\d+)?_ahead", "attention"),
    Case("attention, many queries: P V", r"attn_pv_(?P<rows>\d+)", "attention"),
    Case("attention, few queries: Q K^T", r"attn_dot64_f32_(?P<rows>\d+)", "attention"),
    Case("attention, few queries: P V", r"attn_acc64_f32_(?P<rows>\d+)", "attention"),
    Case("convolution", r"conv_ukr_\w+_(?P<rows>\d+)", "convolution"),
    Case("softmax: exponentials and sum", r"reduce_\w+", "softmax"),
    Case("product of bytes, dotprod", r"ukr_i8_(?P<rows>\d+)(_placed)?(_of\d+)?_ahead", "bytes, dotprod"),
    Case("product of bytes, i8mm", r"ukr_i8_(?P<rows>\d+)(_placed)?(_of\d+)?_matrices_ahead", "bytes, i8mm"),
]


@dataclass(frozen=True)
class Loop:
    """Instructions of an innermost loop without branches but its own."""

    lines: list[str]

    def count(self, pattern: str) -> int:
        return sum(bool(re.match(rf"\s+(?:{pattern})", line)) for line in self.lines)

    @property
    def fmas(self) -> int:
        return self.count(r"fml[as]\b|bfdot\b|u?s(?:mmla|dot)\b")

    @property
    def arithmetic(self) -> int:
        """Instructions that compute in the vector pipelines."""
        return sum(bool(re.match(r"\s+(?!ld|st|movi?\b|dup|prfm)\w+\s+v\d+\.", line)) for line in self.lines)

    @property
    def copies(self) -> int:
        """Instructions that copy in the vector pipelines: a multiply-add overwrites its addend, constant coefficients included."""
        return sum(bool(re.match(r"\s+(?:movi?|dup)\s+v\d+\.", line)) for line in self.lines)

    def moved(self, kind: str) -> int:
        """Registers loaded ("ld") or stored ("st")."""
        return self.count(kind) + self.count(f"{kind}n?p")

    @property
    def bound(self) -> float:
        """Cycles an iteration that the pipelines take at the least."""
        return max((self.arithmetic + self.copies) / ARITHMETIC, self.moved("ld") / LOADS, self.moved("st") / STORES)


def functions(assembly: str) -> dict[str, list[str]]:
    """The lines of each function."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in assembly.splitlines():
        label = re.match(r"([A-Za-z_][\w.$]*):", line)
        if label:
            lines = found.setdefault(label[1], [])
        elif code := line.partition("//")[0].rstrip():
            lines.append(code)
    return found


def loops(lines: list[str]) -> Iterator[Loop]:
    """Innermost loops of one basic block."""
    start: str | None = None
    body: list[str] = []
    for line in lines:
        label = re.match(r"(\.L\w+):", line)
        if label:
            start, body = label[1], []
            continue
        body.append(line)
        branch = re.match(r"\s+(?:b\.\w+|cbn?z|tbn?z|b)\s.*?(\.L\w+)$", line)
        if branch:
            if branch[1] == start:
                yield Loop(body)
            start, body = None, []


def predict(loop: Loop, cpu: str, tool: str) -> float:
    """llvm-mca's cycles an iteration."""
    done = subprocess.run(
        [tool, "-march=aarch64", f"-mcpu={cpu}", f"-iterations={ITERATIONS}"],
        input="\n".join(loop.lines),
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]) / ITERATIONS


def find_tool() -> str | None:
    """An llvm-mca that knows the CPUs."""
    names = [os.environ.get("LLVM_MCA") or "llvm-mca", *(f"llvm-mca-{v}" for v in range(30, 16, -1))]
    for name in filter(shutil.which, names):
        known = subprocess.run([name, "-march=aarch64", "-mcpu=help"], input="", capture_output=True, text=True, check=False)
        if all(cpu in known.stderr + known.stdout for cpu in CPUS):
            return name
    return None


def assemblies(target: str) -> dict[str, dict[str, list[str]]]:
    """The functions of each program."""
    found = {}
    for name, make in PROGRAMS.items():
        module, args, dims = make()
        wanted = "+".join([target, *(x for x in EXTRAS.get(name, []) if x not in target)])
        _, artifact = build(export(module.eval(), args, dynamic_shapes=dims), Options(target=wanted, cache=""))
        found[name] = functions(merged_assembly(artifact))
    return found


def find(case: Case, programs: dict[str, dict[str, list[str]]]) -> Loop:
    """The case's loop. Raises LookupError where there is none."""
    found = {}
    for name, lines in programs[case.program].items():
        matched = re.fullmatch(case.function + r"(\.[\w+-]+)?", name)
        best = max(loops(lines), key=lambda loop: (loop.fmas, loop.arithmetic), default=None) if matched else None
        if matched and best is not None:
            found[int(matched["rows"]) if "rows" in matched.groupdict() else 0] = best
    if not found:
        raise LookupError(f"{case.name}: no loop in a function {case.function}")
    return found[max(found)]


def table(target: str, tool: str) -> tuple[list[str], float]:
    """Lines of a table, and the lowest share of the bound."""
    programs, least = assemblies(target), 1.0
    head = "| loop | arithmetic | copies | loads | bound | " + " | ".join(CPUS) + " |"
    lines = [head, "|---" + "|---:" * (4 + len(CPUS)) + "|"]
    for case in CASES:
        loop = find(case, programs)
        cells = []
        for cpu in CPUS:
            cycles = predict(loop, cpu, tool)
            share = loop.bound / cycles
            least = min(least, share)
            cells.append(f"{cycles:.2f} ({share:.0%})")
        counts = f"{loop.arithmetic} | {loop.copies} | {loop.moved('ld')}"
        lines.append(f"| {case.name} | {counts} | {loop.bound:.2f} | {' | '.join(cells)} |")
    return lines, least


def main() -> int:
    """Exit code 1 where a loop stays below the bar, 2 without the tool."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mca", description=__doc__)
    parser.add_argument("--target", default="aarch64")
    parser.add_argument("--show", metavar="LOOP", help="print the instructions of the loops whose names contain this")
    parser.add_argument("--update", action="store_true", help="rewrite the table in docs/performance.md")
    a = parser.parse_args()
    tool = find_tool()
    if tool is None:
        print(f"error: no llvm-mca that knows {' and '.join(CPUS)}: Debian's package llvm-19 has one", file=sys.stderr)
        return 2
    if a.show is not None:
        programs = assemblies(a.target)
        for case in CASES:
            if a.show in case.name:
                print(f"{case.name}:", *find(case, programs).lines, sep="\n")
        return 0
    lines, least = table(a.target, tool)
    print("\n".join(lines))
    if a.update:
        report.insert(DOCUMENT, "\n".join(lines), "mca")
    return 0 if least >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
