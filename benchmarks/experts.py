"""The table of mixtures of experts: this compiler's grouped products beside the best that others make of any form of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["FORMS", "table"]

FORMS = ("experts", "experts_loop", "experts_dense")
"""Parts of benchmarks.quantised in which one mixture is written in several ways, the one that is ours first."""
_OURS = ("dhlo", "dhlo_int8", "dhlo_int4")


def table(results: Path, threads: int) -> list[str]:
    """Lines of a table of what has been measured with so many threads, as far as it has. Peers that keep f32 count beside int8 and
    int4, too. Raises FileNotFoundError where nothing of ours has."""
    measured = [json.loads(p.read_text()) for f in FORMS if (p := results / f"{f}_t{threads}.json").exists()]
    if not measured or measured[0]["part"] != FORMS[0]:
        raise FileNotFoundError(f"no results of {FORMS[0]} with {threads} threads in {results}")
    ours = measured[0]["peers"]
    names = [name for name in _OURS if "median_ms" in ours.get(name, {})]
    head = " | ".join(f"{_bits(name)}, ms | best other | times" for name in names)
    lines = [f"| mixture, rows; {threads} threads | {head} |", "| --- |" + " --- |" * (3 * len(names))]
    for i, label in enumerate(measured[0]["labels"]):
        cells = []
        for name in names:
            mine = ours[name]["median_ms"][i]
            others = [(ms, who) for r in measured for ms, who in _others(r, label, _bits(name))]
            best, who = min(others, default=(float("nan"), "none"))
            cells += [f"{mine:.3g}", f"{best:.3g} {who}", f"{best / mine:.2f}"]
        lines.append(f"| {label.removeprefix('experts_')} | {' | '.join(cells)} |")
    return lines


def _bits(peer: str) -> str:
    return peer.partition("_")[2] or "f32"


def _others(result: dict[str, Any], label: str, bits: str) -> Iterator[tuple[float, str]]:
    """Times and names of other peers with weights of so many bits, or f32."""
    if label not in result["labels"]:
        return
    i, form = result["labels"].index(label), result["part"].partition("_")[2] or "grouped"
    for name, facts in result["peers"].items():
        if name not in _OURS and _bits(name) in ("f32", bits) and "median_ms" in facts:
            yield facts["median_ms"][i], f"{name}, {form}"
