"""Tables of results as markdown, and the parts of the documents that they fill."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dhlo.bench.peers import PEERS

__all__ = ["MARKS", "detail", "insert", "summary"]

MARKS = ("<!-- {}:begin -->", "<!-- {}:end -->")
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


def _ratio(by_peer: dict[str, list[float]], names: Iterable[str]) -> list[float]:
    """By shape: how many times faster dhlo is than the fastest of the named peers; empty where none of them ran."""
    others = [by_peer[n] for n in names if n in by_peer]
    if OURS not in by_peer or not others:
        return []
    return [min(t) / ours for ours, *t in zip(by_peer[OURS], *others, strict=True)]


def speedups(result: Result, figure: str = "median_ms") -> tuple[list[float], list[float], list[float]]:
    """By shape: how many times faster than eager, than the best other peer that takes every shape, and than the best
    peer that was compiled for that shape alone; empty where nothing is to compare."""
    by_peer = times(result, figure)
    specialised = [n for n in by_peer if n in PEERS and PEERS[n].specialised]
    general = [n for n in by_peer if n not in specialised and not _is_ours(n)]
    return _ratio(by_peer, ["eager"]), _ratio(by_peer, general), _ratio(by_peer, specialised)


def _is_ours(name: str) -> bool:
    return name in PEERS and PEERS[name].ours


def geomean(xs: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(xs):.2f}" if xs else "–"


def detail(result: Result) -> str:
    """One workload: a row a shape with the median milliseconds of every peer, the floor, and how dhlo compares."""
    by_peer = times(result)
    eager, best, special = speedups(result)
    names = list(by_peer)
    ratios = {"over eager": eager, "over the best other": best} | ({"over the best specialised": special} if special else {})
    head = ["shape", *names, "floor", *ratios, "floor / dhlo"]
    rows = []
    for i, label in enumerate(result["labels"]):
        fastest = min((t[i] for t in by_peer.values()), default=0.0)
        cells = [number(by_peer[n][i]) if by_peer[n][i] > fastest else f"**{number(by_peer[n][i])}**" for n in names]
        share = f"{result['floor_ms'][i] / by_peer[OURS][i]:.0%}" if OURS in by_peer else "–"
        rows.append(
            [
                label,
                *cells,
                number(result["floor_ms"][i]),
                *(f"{s[i]:.2f}" if s else "–" for s in ratios.values()),
                share,
            ]
        )
    lines = [f"### {result['workload']}, {result['threads']} thread{'s' * (result['threads'] > 1)}", ""]
    lines += _table(head, rows)
    if best:
        worst = min(range(len(best)), key=best.__getitem__)
        lines += [
            "",
            f"Geometric mean {geomean(eager)} over eager, {geomean(best)} over the best other peer; "
            f"worst shape {result['labels'][worst]}: {best[worst]:.2f}.",
        ]
    compiles = [f"{n} {p['compile_s']:.1f} s" for n, p in result["peers"].items() if "compile_s" in p]
    lines += ["", "Compiling: " + (", ".join(compiles) or "none") + "."]
    lines += [f"`{n}` fails: {p['error']}" for n, p in result["peers"].items() if "error" in p]
    return "\n".join(lines) + "\n"


def summary(results: Sequence[Result], target: str | None = None) -> str:
    """All workloads, a row for each group of them: geometric means over all shapes, and the worst shape. `target` is what all were
    limited to."""
    groups: dict[str, list[Result]] = {}
    for r in results:
        groups.setdefault(r["group"], []).append(r)
    rows = [_group_row(name, members) for name, members in sorted(groups.items())]
    keep = [i for i, title in enumerate(_COLUMNS) if title != _SPECIALISED or any(r[i] != "–" for r in rows)]
    head, rows = [_COLUMNS[i] for i in keep], [[r[i] for i in keep] for r in rows]
    return "\n".join([_conditions(results, target), "", *_table(head, rows)])


_SPECIALISED = "over the best specialised to the shape"
_COLUMNS = (
    "workload",
    "over eager",
    "over the best other peer",
    "worst shape, over the best",
    _SPECIALISED,
    "compiling, s",
    "code, KB",
)


def _group_row(name: str, members: Sequence[Result]) -> list[str]:
    """Workloads of one group; of compile times and code sizes, the largest."""
    ours = [r["peers"][OURS] for r in members if "median_ms" in r["peers"].get(OURS, {})]
    if not ours:
        return [name, "fails", *["–"] * (len(_COLUMNS) - 2)]
    eager, best, special = ([x for r in members for x in speedups(r)[k]] for k in range(3))
    named = [(x, _suffix(r, members) + label) for r in members for x, label in zip(speedups(r)[1], r["labels"], strict=False)]
    worst = min(named, default=None)
    sizes = [p["code_bytes"] for p in ours if p.get("code_bytes")]
    failed = "" if len(ours) == len(members) else f" ({len(members) - len(ours)} of {len(members)} fail)"
    return [
        name + failed,
        geomean(eager),
        geomean(best),
        f"{worst[0]:.2f} ({worst[1]})" if worst else "–",
        geomean(special),
        f"{max(p['compile_s'] for p in ours):.1f}",
        f"{max(sizes) / 1024:.0f}" if sizes else "–",
    ]


def _suffix(result: Result, members: Sequence[Result]) -> str:
    return "" if len(members) == 1 else result["workload"].split("_", 1)[1] + " "


def _conditions(results: Sequence[Result], target: str | None) -> str:
    """What was measured, on what, against which versions."""
    r = results[-1]
    c = r["ceilings"]
    peers = sorted({n for x in results for n in times(x) if not _is_ours(n)})
    versions = ", ".join(f"{n} {v}" for n, v in r["versions"].items())
    limit = f" --target {target}" if target else ""
    return (
        f"Speed-ups (geometric means over all shapes; the shape changes at every call) on {r['threads']} "
        f"thread{'s' * (r['threads'] > 1)} of {r['machine']}: {c['f32_gflops']:.0f} GFLOP/s of f32 multiply-adds, "
        f"{c['bf16_gflops']:.0f} of bf16, {c['l3_gbs']:.0f} GB/s from L3, {c['dram_gbs']:.0f} GB/s from memory. "
        f"Other peers: {', '.join(peers) or 'none'}; {versions}; {r['date']}. "
        f"Made by `python -m benchmarks --threads {r['threads']}{limit} --update-readme`."
    )


def insert(path: Path, text: str, name: str = "measured") -> None:
    """Puts text between the markers `name` of a document. Raises ValueError if there are none."""
    (first, last), whole = (m.format(name) for m in MARKS), path.read_text()
    before, begin, rest = whole.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"'{path}' has no markers {first} and {last}")
    path.write_text(f"{before}{first}\n{text.strip()}\n{last}{after}")
