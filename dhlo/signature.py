"""The contract of a compiled model as text and as a table for people."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dhlo import _runtime

if TYPE_CHECKING:
    from dhlo.model_file import ModelInfo

__all__ = ["signature", "signature_html", "type_for_people"]


def signature(model: _runtime.Model | ModelInfo) -> str:
    """Arguments and results with their dims, the state, symbols with their ranges, and what else is checked at every call."""
    meta = json.loads(model.metadata)
    lines = [f"{model.name} ({model.producer})"]
    for title, rows in _sections(model, meta):
        lines += [f"{title}:", *(f"  {': '.join(row)}" for row in rows)]
    return "\n".join(lines)


def signature_html(model: _runtime.Model | ModelInfo) -> str:
    """The same as a table in HTML."""

    def cell(tag: str, text: str, span: int = 1) -> str:
        return f'<{tag} colspan="{span}" style="text-align:left">{html.escape(text)}</{tag}>'

    rows = []
    for title, section in _sections(model, json.loads(model.metadata)):
        rows.append(cell("th", title, 2))
        rows += ["".join(cell("td", text, 2 // len(row)) for text in row) for row in section]
    name = html.escape(f"{model.name} ({model.producer})")
    return f"<table><caption>{name}</caption>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _sections(model: _runtime.Model | ModelInfo, meta: Mapping[str, Any]) -> Iterable[tuple[str, Sequence[tuple[str, ...]]]]:
    """Titles, and below each its rows: a name and what it is, or one text."""
    yield "inputs", [(v["name"], f"{v['dtype']}[{', '.join(v['dims'])}]") for v in model.inputs]
    yield "outputs", [(v["name"], f"{v['dtype']}[{', '.join(v['dims'])}]") for v in model.outputs]
    if meta.get("states"):
        states = [(n, f"{s['dtype']}[{', '.join(map(str, s['shape']))}]") for n, s in meta["states"].items()]
        yield "state, kept by a session from call to call", states
    if meta.get("process_groups"):
        groups = meta["process_groups"].items()
        yield "does collective operations in", [(name, _processes(size)) for name, size in groups]
    if meta["symbols"]:
        hints = meta.get("hints", {})
        yield "sizes", [(_range(name, lo, hi, hints.get(name)),) for name, (lo, hi) in meta["symbols"].items()]
    checks = [(c["text"],) for c in meta["checks"] if c["kind"] not in ("rank", "dtype", "min", "max", "size")]
    if checks:
        yield "checked at every call", checks


def _processes(size: int) -> str:
    return f"{size or 'any number of'} process{'' if size == 1 else 'es'}"


def _range(name: str, lo: float | None, hi: float | None, usual: int | None) -> str:
    text = f"{lo if lo is not None else '-inf'} <= {name}" + (f" <= {hi}" if hi is not None else "")
    return text if usual is None else f"{text}, usually {usual}"


def type_for_people(text: str) -> str:
    """`f32[batch, 64]` for `tensor<?x64xf32, #dhlo.shape<["batch", "64"]>>`; any other text as it is."""
    found = re.fullmatch(r"tensor<((?:(?:\?|\d++)x)*+)([a-z]\w*+(?:<\w++>)?)(?:, #dhlo\.shape<\[(.*)\]>)?>", text)
    if found is None:
        return text
    sizes = re.findall(r'"([^"]*)"', found[3]) if found[3] is not None else found[1].split("x")[:-1]
    return f"{found[2]}[{', '.join(sizes)}]"
