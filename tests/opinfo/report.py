"""What a run of the database found: a summary for the terminal, and docs/coverage.md."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.opinfo.pool import ROOT, Job
from tests.opinfo.scope import out_of_scope

__all__ = ["CACHE", "causes", "counts", "document", "keep", "load", "summary"]

CACHE = ROOT / "build" / "opinfo.json"
Results = dict[str, dict[str, Any]]  # "operator|dtype" -> {"samples": [...], "seconds": ...}
_NOTE = """# Operators, as measured by PyTorch's own database

PyTorch keeps sample inputs of its operators for its own tests (OpInfo). `python -m tests.opinfo --write-docs` takes a few
differently structured samples of every operator and dtype, exports each with every size of 2 or more dynamic (static where
torch.export can't do that), compiles it, and compares with eager PyTorch; then again at other sizes from the same binary, as far as
the exported program accepts them (grown, larger, 1, 0). Integers and bools must be equal; floats within the tolerances stated in
`tests/opinfo/check.py`, or as near to the result in double precision as PyTorch's own (of Fourier transforms, convolutions and
running sums: as PyTorch's worst element). Random operators are compared by dtype and shape. Left at the sample's own sizes are
operators whose inputs have to fit together (sorted bounds, segments, regular matrices), and sizes that need over 1 GiB.

A cell says how many samples match of those that export and whose operators dhlo means to have; `·` means that the operator doesn't
take the dtype, `-` that no sample counts; an empty cell wasn't drawn for this run. What is left out on purpose is named in the last
column, in parentheses, and what torch.export can't trace, such as a result that is a Python value of the data (`allclose`,
`equal`), `linalg.lstsq`, and `combinations` of two and more.
"""


def load() -> Results:
    """What the last run left."""
    results: Results = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    return results


def keep(key: str, answer: dict[str, Any]) -> None:
    """Adds an answer to what the last run left, which other runs may be adding to."""
    CACHE.parent.mkdir(exist_ok=True)
    part = CACHE.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({**load(), key: answer}, indent=1))
    part.replace(CACHE)


def outcome(sample: dict[str, Any]) -> str:
    """A sample's outcome; refused because of operators that are left out on purpose counts as `left out`."""
    reason = sample["reason"]
    if sample["outcome"] == "refused" and reason.startswith("no lowering: "):
        missing = reason.removeprefix("no lowering: ").split(", ")
        if all(out_of_scope(m) for m in missing):
            return "left out"
    return str(sample["outcome"])


def _left_out(reason: str) -> str:
    missing = reason.removeprefix("no lowering: ").split(", ")
    return next(r for r in map(out_of_scope, missing) if r)


def _not_exported(reason: str) -> str:
    """What torch.export, or PyTorch's own run, stops at, in short."""
    own = reason.startswith("PyTorch: ")
    return f"{'eager ' if own else 'torch.export: '}{reason[:70].rsplit(' ', 1)[0] if len(reason) > 70 else reason}"


def counts(answers: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(outcome(s) for a in answers for s in a["samples"])


def summary(results: Results) -> str:
    """Totals by dtype."""
    lines = [f"{'':6}{'pass':>7}{'of':>7}{'%':>7}  refused  wrong  failed  left out  no export  other sizes  seconds"]
    for dtype in [*dict.fromkeys(k.split("|")[1] for k in results), "all"]:
        answers = [a for k, a in results.items() if dtype in ("all", k.split("|")[1])]
        c = counts(answers)
        total = c["pass"] + c["refused"] + c["wrong"] + c["failed"]
        sizes = sum(s["sizes"] for a in answers for s in a["samples"])
        seconds = sum(a["seconds"] for a in answers)
        lines.append(
            f"{dtype:6}{c['pass']:7}{total:7}{100 * c['pass'] / max(total, 1):7.1f}  {c['refused']:7}  {c['wrong']:5}  "
            f"{c['failed']:6}  {c['left out']:8}  {c['no export']:9}  {sizes:11}  {seconds:7.0f}"
        )
    return "\n".join(lines)


def causes(results: Results) -> str:
    """Failures by outcome and reason, most frequent first."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, answer in results.items():
        for s in answer["samples"]:
            if outcome(s) in ("refused", "wrong", "failed"):
                found.setdefault((outcome(s), s["reason"][:110]), []).append(key)
    rows = sorted(found.items(), key=lambda x: -len(x[1]))
    return "\n".join(
        f"{len(keys):4} {what}: {reason}  [{', '.join(list(dict.fromkeys(keys))[:4])}]" for (what, reason), keys in rows
    )


def document(results: Results, note: str, every: Iterable[Job]) -> str:
    """The text of docs/coverage.md; `every` job there is."""
    known = {"|".join(job) for job in every}
    dtypes = list(dict.fromkeys(k.split("|")[1] for k in results))
    rows = [f"| operator | {' | '.join(dtypes)} | what doesn't match, and why |", f"| --- |{' --- |' * len(dtypes)} --- |"]
    for name in sorted({k.split("|")[0] for k in results}, key=str.lower):
        cells, reasons = [], []
        for dtype in dtypes:
            answer = results.get(f"{name}|{dtype}")
            if answer is None:
                cells.append("" if f"{name}|{dtype}" in known else "·")
                continue
            c = counts([answer])
            total = c["pass"] + c["refused"] + c["wrong"] + c["failed"]
            cells.append(f"{c['pass']}/{total}" if total else "-")
            for s in answer["samples"]:
                if outcome(s) == "left out":
                    reasons.append(f"({_left_out(s['reason'])})")
                elif outcome(s) == "no export":
                    reasons.append(f"({_not_exported(s['reason'])})")
                elif outcome(s) != "pass":
                    reasons.append(f"{outcome(s)}: {s['reason']}")
        why = "; ".join(dict.fromkeys(r[:140].replace("|", "\\|") for r in reasons))
        rows.append(f"| {name} | {' | '.join(cells)} | {why} |")
    return "\n".join([_NOTE, note, "", "```", summary(results), "```", "", *rows, ""])
