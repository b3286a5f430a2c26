"""Tables of results as markdown, and the parts of the documents that they fill."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["BEGIN", "END", "detail", "insert", "summary"]

BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
OURS = "dhlo"

Result = dict[str, Any]


def number(x: float) -> str:
    """Three significant digits or so."""
    return f"{x:.4f}" if x < 0.1 else f"{x:.3f}" if x < 1 else f"{x:.2f}" if x < 10 else f"{x:.1f}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), "|" + " --- |" * len(head), *map(_row, rows)]


def times(result: Result, figure: str = "median_ms") -> dict[str, list[float]]:
    """Milliseconds by peer, of those that ran."""
    return {n: p[figure] for n, p in result["peers"].items() if figure in p}


def speedups(result: Result, figure: str = "median_ms") -> tuple[list[float], list[float]]:
    """By shape: how many times faster than eager and than the best other peer; empty where there is nothing to compare."""
    by_peer = times(result, figure)
    ours = by_peer.pop(OURS, None)
    if ours is None or not by_peer:
        return [], []
    best = [min(t) for t in zip(*by_peer.values(), strict=True)]
    eager = by_peer.get("eager", [])
    return [a / b for a, b in zip(eager, ours, strict=False)], [a / b for a, b in zip(best, ours, strict=True)]


def geomean(xs: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(xs):.2f}" if xs else "–"


def detail(result: Result) -> str:
    """One workload: a row a shape with the median milliseconds of every peer, the floor, and how dhlo compares."""
    by_peer = times(result)
    eager, best = speedups(result)
    names = list(by_peer)
    head = ["shape", *names, "floor", "over eager", "over the best other", "floor / dhlo"]
    rows = []
    for i, label in enumerate(result["labels"]):
        fastest = min((t[i] for t in by_peer.values()), default=0.0)
        cells = [number(by_peer[n][i]) if by_peer[n][i] > fastest else f"**{number(by_peer[n][i])}**" for n in names]
        share = f"{result['floor_ms'][i] / by_peer[OURS][i]:.0%}" if OURS in by_peer else "–"
        rows.append([label, *cells, number(result["floor_ms"][i]), *(f"{s[i]:.2f}" if s else "–" for s in (eager, best)), share])
    lines = [f"### {result['workload']}, {result['threads']} thread{'s' * (result['threads'] > 1)}", ""]
    lines += _table(head, rows)
    if best:
        worst = min(range(len(best)), key=best.__getitem__)
        lines += ["", f"Geometric mean {geomean(eager)} over eager, {geomean(best)} over the best other peer; "
                      f"worst shape {result['labels'][worst]}: {best[worst]:.2f}."]  # fmt: skip
    compiles = [f"{n} {p['compile_s']:.1f} s" for n, p in result["peers"].items() if "compile_s" in p]
    lines += ["", "Compiling: " + (", ".join(compiles) or "none") + "."]
    lines += [f"`{n}` fails: {p['error']}" for n, p in result["peers"].items() if "error" in p]
    return "\n".join(lines) + "\n"


def summary(results: Sequence[Result]) -> str:
    """All workloads, a row for each group of them: geometric means over all shapes, and the worst shape."""
    groups: dict[str, list[Result]] = {}
    for r in results:
        groups.setdefault(r["group"], []).append(r)
    rows = []
    for name, members in sorted(groups.items()):
        eager = [x for r in members for x in speedups(r)[0]]
        named = [
            (x, f"{_suffix(r, members)}{label}")
            for r in members for x, label in zip(speedups(r)[1], r["labels"], strict=False)
        ]  # fmt: skip
        ours = [r["peers"][OURS] for r in members if "compile_s" in r["peers"].get(OURS, {})]
        if not ours:
            rows.append([name, "fails", "–", "–", "–", "–"])
            continue
        worst = min(named, default=None)
        sizes = [p["code_bytes"] for p in ours if p.get("code_bytes")]
        rows.append([
            name, geomean(eager), geomean([x for x, _ in named]),
            f"{worst[0]:.2f} ({worst[1]})" if worst else "–",
            f"{max(p['compile_s'] for p in ours):.1f}", f"{max(sizes) / 1024:.0f}" if sizes else "–",
        ])  # fmt: skip
    head = ["workload", "over eager", "over the best other peer", "worst shape, over the best", "compiling, s", "code, KB"]
    return "\n".join([_conditions(results), "", *_table(head, rows)])


def _suffix(result: Result, members: Sequence[Result]) -> str:
    return "" if len(members) == 1 else result["workload"].split("_", 1)[1] + " "


def _conditions(results: Sequence[Result]) -> str:
    """What was measured, on what, against which versions."""
    r = results[-1]
    c = r["ceilings"]
    peers = sorted({n for x in results for n in times(x)} - {OURS})
    versions = ", ".join(f"{n} {v}" for n, v in r["versions"].items())
    return (
        f"Speed-ups (higher is better, geometric means over all shapes, the shape changes at every call) on {r['threads']} "
        f"thread{'s' * (r['threads'] > 1)} of {r['machine']}: {c['f32_gflops']:.0f} GFLOP/s of f32 multiply-adds, "
        f"{c['bf16_gflops']:.0f} of bf16, {c['l3_gbs']:.0f} GB/s from L3, {c['dram_gbs']:.0f} GB/s from memory. "
        f"Other peers: {', '.join(peers) or 'none'}; {versions}; {r['date']}. "
        f"Made by `python -m benchmarks --threads {r['threads']} --update-readme`."
    )


def insert(path: Path, text: str) -> None:
    """Puts text between the markers of a document. Raises ValueError if there are none."""
    whole = path.read_text()
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"'{path}' has no markers {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text.strip()}\n{END}{after}")
