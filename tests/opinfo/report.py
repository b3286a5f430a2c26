"""What a run of the database found: a summary for the terminal, and docs/coverage.md."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.opinfo.pool import ROOT, Job
from tests.opinfo.samples import DTYPES
from tests.opinfo.scope import out_of_scope

__all__ = ["CACHE", "Column", "causes", "columns", "counts", "document", "keep", "load", "summary"]

CACHE = ROOT / "build" / "opinfo.json"
_BREAK = "<br>"  # between reasons, each after its dtypes
Results = dict[str, dict[str, Any]]  # "operator|dtype" -> {"samples": [...], "seconds": ...}
_NOTE = """# Operators, as measured by PyTorch's own database

PyTorch keeps sample inputs of its operators for its own tests (OpInfo). `python -m tests.opinfo --write-docs` takes a few
differently structured samples of every operator and dtype, exports each with every size of 2 or more dynamic (static where
torch.export can't do that), compiles it, and compares with eager PyTorch; then again at other sizes from the same binary, as far as
the exported program accepts them (grown, larger, 1, 0). Integers and bools must be equal; floats within the tolerances stated in
`tests/opinfo/check.py`, or as near to the result in double precision as PyTorch's own (of Fourier transforms, convolutions, running
sums and differences of distances: as PyTorch's worst element). Random operators are compared by dtype and shape. Left at the
sample's own sizes are operators whose inputs have to fit together (sorted bounds, segments, regular matrices), in f64 those whose
digits rounding decides (condition numbers, eigenvalues in general, pseudo-inverses), and sizes that need over 1 GiB,
or of convolutions whose result in double precision takes PyTorch over 4 GiB.

A cell says how many samples match of those that export and whose operators dhlo means to have; `·` means that the operator doesn't
take the dtype, `-` that no sample counts; an empty cell wasn't run. What doesn't match is named in the last column, in full, after
its dtypes; in parentheses what is left out on purpose, and what torch.export can't trace or PyTorch itself doesn't run, such as a
result that is a Python value of the data (`allclose`, `equal`), `linalg.lstsq`, and `combinations` of two and more.
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
    reason = re.sub(r"\{u\d+(, u\d+)*\}", "{u…}", reason)
    return f"{'eager ' if own else 'torch.export: '}{reason[:100].rsplit(' ', 1)[0] + ' …' if len(reason) > 100 else reason}"


def counts(answers: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(outcome(s) for a in answers for s in a["samples"])


@dataclass
class Column:
    """What an earlier document says of a dtype: the numbers of its summary, a cell of each operator, and what doesn't match."""

    numbers: list[int]
    share: str
    cells: dict[str, str]
    reasons: dict[str, list[str]]


def columns(text: str, without: Iterable[str]) -> dict[str, Column]:
    """What a document says of the dtypes that aren't among `without`."""
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.split("\n") if line.startswith("| ")]
    found = {}
    for k, dtype in enumerate(rows[0][1:-1] if rows else [], start=1):
        numbers = re.search(rf"^{dtype} +(\d.*)$", text, re.MULTILINE)
        share = re.search(rf"^- {dtype}: (.*)$", text, re.MULTILINE)
        if dtype not in without and numbers and share:
            n = numbers.group(1).split()
            cells = {r[0]: r[k] for r in rows[2:]}
            reasons: dict[str, list[str]] = {}
            for r in rows[2:]:
                for named, reason in (x.split(": ", 1) for x in r[-1].split(_BREAK) if x):
                    if dtype in named.split(", "):
                        reasons.setdefault(r[0], []).append(reason.replace("\\|", "|"))
            found[dtype] = Column([int(x) for x in n[:2] + n[3:]], share.group(1), cells, reasons)
    return found


def summary(results: Results, kept: Mapping[str, Column] | None = None) -> str:
    """Totals by dtype, of the results and of what is kept of an earlier document."""
    lines = [f"{'':6}{'pass':>7}{'of':>7}{'%':>7}  refused  wrong  failed  left out  no export  other sizes  seconds"]
    rows = {}
    for dtype in {k.split("|")[1] for k in results}:
        answers = [a for k, a in results.items() if dtype == k.split("|")[1]]
        c = counts(answers)
        total = c["pass"] + c["refused"] + c["wrong"] + c["failed"]
        sizes = sum(s["sizes"] for a in answers for s in a["samples"])
        seconds = round(sum(a["seconds"] for a in answers))
        rest = [c[k] for k in ("refused", "wrong", "failed", "left out", "no export")]
        rows[dtype] = [c["pass"], total, *rest, sizes, seconds]
    rows |= {dtype: column.numbers for dtype, column in (kept or {}).items()}
    rows = {dtype: rows[dtype] for dtype in DTYPES if dtype in rows}
    rows["all"] = [sum(n) for n in zip(*rows.values(), strict=True)] or [0] * 9
    for dtype, (passed, total, refused, wrong, failed, left, none, sizes, seconds) in rows.items():
        lines.append(
            f"{dtype:6}{passed:7}{total:7}{100 * passed / max(total, 1):7.1f}  {refused:7}  {wrong:5}  "
            f"{failed:6}  {left:8}  {none:9}  {sizes:11}  {seconds:7}"
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


def document(results: Results, note: str, every: Iterable[Job], kept: Mapping[str, Column]) -> str:
    """The text of docs/coverage.md; `every` job there is, and what is kept of the document before."""
    known = {"|".join(job) for job in every}
    dtypes = sorted({k.split("|")[1] for k in results} | set(kept), key=list(DTYPES).index)
    rows = [f"| operator | {' | '.join(dtypes)} | what doesn't match, and why |", f"| --- |{' --- |' * len(dtypes)} --- |"]
    names = {k.split("|")[0] for k in results}.union(*(c.cells for c in kept.values()))
    for name in sorted(names, key=str.lower):
        cells, reasons = [], {}
        for dtype in dtypes:
            answer = results.get(f"{name}|{dtype}")
            if dtype in kept:
                cell, found = kept[dtype].cells.get(name), kept[dtype].reasons.get(name, [])
            else:
                cell, found = (_cell(answer), _reasons(answer)) if answer is not None else (None, [])
            cells.append(cell if cell is not None else "" if f"{name}|{dtype}" in known else "·")
            for reason in found:
                reasons.setdefault(reason, []).append(dtype)
        why = _BREAK.join(f"{', '.join(which)}: {reason}" for reason, which in reasons.items()).replace("|", "\\|")
        rows.append(f"| {name} | {' | '.join(cells)} | {why} |")
    shares = [f"- {dtype}: {_share(results, dtype, known) if dtype not in kept else kept[dtype].share}" for dtype in dtypes]
    return "\n".join([_NOTE, note, "", *shares, "", "```", summary(results, kept), "```", "", *rows, ""])


def _share(results: Results, dtype: str, known: Iterable[str]) -> str:
    """How many operators of a dtype there are results of, and of how many structures of samples at most."""
    own = [a for k, a in results.items() if k.endswith(f"|{dtype}")]
    total = sum(k.endswith(f"|{dtype}") for k in known)
    most = Counter(a.get("structures") or "the usual number" for a in own)
    of = ", ".join(f"{n} of {m}" if len(most) > 1 else f"{m}" for m, n in sorted(most.items(), key=str))
    return f"{len(own)} of {total} operators, structures each: {of}"


def _cell(answer: dict[str, Any]) -> str:
    c = counts([answer])
    total = c["pass"] + c["refused"] + c["wrong"] + c["failed"]
    return f"{c['pass']}/{total}" if total else "-"


def _reasons(answer: dict[str, Any]) -> list[str]:
    """Why samples don't match, in full; in parentheses, why others don't count."""
    found = []
    for s in answer["samples"]:
        what, reason = outcome(s), s["reason"].replace(_BREAK, " ")
        if what == "left out":
            found.append(f"({_left_out(reason)})")
        elif what == "no export":
            found.append(f"({_not_exported(reason)})")
        elif what != "pass":
            found.append(f"{what}: {reason}")
    return list(dict.fromkeys(found))
