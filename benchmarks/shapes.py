"""python -m benchmarks.shapes: how long the symbolic part of compiling takes as programs grow.

A program has as many sizes that only data decides, each the number of elements that a comparison selects, with arithmetic, joins
and reductions over them. Measured is everything from import to the host program's text: what depends on symbols. Machine code
is left out, and so is torch.export.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from benchmarks import report
from benchmarks.measure import ROOT
from dhlo.compiler import compile_program
from dhlo.frontend import import_program
from dhlo.options import Options

__all__ = ["main"]

SIZES = ((100, 500), (300, 1500), (1000, 5000))
DOCUMENT = ROOT / "docs" / "performance.md"
STAGES = {"import": "import", "pass": "passes", "lower": "host program"}


class Selections(torch.nn.Module):
    """`symbols` selections of x; each of `nodes` graph nodes belongs to one of them."""

    def __init__(self, symbols: int, nodes: int) -> None:
        super().__init__()
        self.symbols, self.more = symbols, nodes // symbols - 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for k in range(self.symbols):
            y = x[x > k / self.symbols]
            for _ in range(self.more):
                y = torch.cat([y, y[:1]]) if _ % 4 == 3 else y + 1
            total = total + y.sum()
        return total


class _Done(Exception):
    """Ends compilation where machine code would be made."""


def measure(symbols: int, nodes: int) -> tuple[int, float, dict[str, float]]:
    """Nodes of the exported graph, seconds that torch.export took, and seconds of dhlo's stages."""
    start = time.perf_counter()
    exported = torch.export.export(Selections(symbols, nodes), (torch.rand(64),), dynamic_shapes=({0: torch.export.Dim("n")},))
    exporting = time.perf_counter() - start
    spent = dict.fromkeys(STAGES.values(), 0.0)
    now = [time.perf_counter(), "import"]

    def progress(what: str) -> None:
        at = time.perf_counter()
        spent[STAGES[str(now[1])]] += at - float(now[0])
        now[:] = [at, what.split()[0]]
        if what == "generate code":
            raise _Done

    program = import_program(exported)
    progress("pass")
    try:
        compile_program(program, Options(), lambda what: progress("pass" if what.startswith("pass") else what))
    except _Done:
        pass
    return len(exported.graph.nodes), exporting, spent


def table(rows: list[tuple[int, int, float, dict[str, float]]]) -> str:
    """A Markdown table."""
    heads = ["sizes that data decides", "graph nodes", *(f"{s}, s" for s in STAGES.values()), "together, s", "torch.export, s"]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join(["---"] * len(heads)) + " |"]
    for symbols, nodes, exporting, spent in rows:
        cells: list[Any] = [symbols, nodes, *(f"{t:.2f}" for t in spent.values()), f"{sum(spent.values()):.2f}", f"{exporting:.1f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes", description=__doc__)
    parser.add_argument("--symbols", type=int, nargs="*", help="only programs of so many symbols, with 5 nodes each")
    parser.add_argument("--update-docs", action="store_true", help=f"rewrite the table in {DOCUMENT.name}")
    a = parser.parse_args()
    rows = []
    for symbols, nodes in [(s, 5 * s) for s in a.symbols] if a.symbols else SIZES:
        rows.append((symbols, *measure(symbols, nodes)))
        print(rows[-1], flush=True)
    print(table(rows))
    if a.update_docs:
        report.insert(DOCUMENT, table(rows), "shapes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
