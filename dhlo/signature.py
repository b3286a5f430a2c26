"""The contract of a compiled model as text for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dhlo import _runtime

if TYPE_CHECKING:
    from dhlo.model_file import ModelInfo

__all__ = ["signature"]


def signature(model: _runtime.Model | ModelInfo) -> str:
    """Arguments and results with their dims, the state, symbols with their ranges, and what else is checked at every call."""
    meta = json.loads(model.metadata)
    lines = [f"{model.name} ({model.producer})", "inputs:"]
    lines += [f"  {v['name']}: {v['dtype']}[{', '.join(v['dims'])}]" for v in model.inputs]
    lines.append("outputs:")
    lines += [f"  {v['name']}: {v['dtype']}[{', '.join(v['dims'])}]" for v in model.outputs]
    if meta.get("states"):
        lines.append("state, kept by a session from call to call:")
        lines += [f"  {n}: {s['dtype']}[{', '.join(map(str, s['shape']))}]" for n, s in meta["states"].items()]
    if meta["symbols"]:
        lines.append("sizes:")
        for name, (lo, hi) in meta["symbols"].items():
            lines.append(f"  {lo if lo is not None else '-inf'} <= {name}" + (f" <= {hi}" if hi is not None else ""))
    checks = [c["text"] for c in meta["checks"] if c["kind"] not in ("rank", "dtype", "min", "max", "size")]
    if checks:
        lines.append("checked at every call:")
        lines += [f"  {t}" for t in checks]
    return "\n".join(lines)
