"""What the report's page is made of: the model's metadata, with expressions as trees, inside a template without outside parts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from dhlo.errors import DhloError
from dhlo.model_file import ModelInfo
from dhlo.report.expressions import Expressions
from dhlo.schema import check, read_json
from dhlo.signature import type_for_people

__all__ = ["PROFILE", "read_profile", "render_report"]

_SCRIPTS = ("sizes.js", "view.js", "memory.js", "roofline.js", "groups.js", "main.js")
_OF_GROUPS = ("anchor", "module", "source", "step", "ops", "lines", "reads")
_NUMBER = (float, int, type(None))
PROFILE = {
    "model": str, "entry": str, "level": str, "machine": str, "threads": int,
    "ceilings": {str: (float, int)}, "caches": {str: int},
    "points": [{
        "label": str, "sizes": {str: int},
        "groups": [{"group": int, "kernels": [str], "launches": int, "seconds": (float, int), "flops": _NUMBER, "bytes": _NUMBER,
                    "floor": _NUMBER, "predicted": _NUMBER}],
    }],
}  # fmt: skip
"""The structure of a profile's JSON, as `dhlo bench --save-profile` writes it. A group's number is -1 for launches of none; rates
are GFLOP/s and GB/s, caches bytes by level."""


def read_profile(path: str | Path) -> dict[str, Any]:
    """A profile that `dhlo bench --save-profile` has written. Raises DhloError where the file isn't one."""
    try:
        data: dict[str, Any] = read_json(Path(path).read_bytes(), PROFILE)
    except OSError as e:
        raise DhloError(f"profile '{path}' can't be read: {e.strerror}") from None
    except ValueError as e:
        raise DhloError(f"'{path}' is not a profile of dhlo bench --save-profile: {e}") from None
    return data


def render_report(
    infos: Mapping[str, ModelInfo], facts: Mapping[str, str] | None = None, profile: Mapping[str, Any] | None = None
) -> str:
    """The page of a model.

    Args:
        infos: what the model says of each of its entries.
        facts: shown beside the model's name: digest, signature.
        profile: times of its groups, of `read_profile`'s structure.

    Raises DhloError where the profile is of another model or has another structure.
    """
    expressions = Expressions()
    entries = {name: _entry(info, expressions) for name, info in infos.items()}
    if profile is not None:
        _check_profile(profile, entries)
    data = {"facts": dict(facts or {}), "entries": entries, "expressions": expressions.rows, "profile": profile}
    name = next(iter(infos.values())).name
    return _fill(data, name)


def _entry(info: ModelInfo, expressions: Expressions) -> dict[str, Any]:
    meta = json.loads(info.metadata)
    number = expressions.number

    def values(rows: Any) -> list[dict[str, Any]]:
        return [{"name": v["name"], "dtype": v["dtype"], "dims": [number(d) for d in v["dims"]]} for v in rows]

    def group(g: dict[str, Any]) -> dict[str, Any]:
        costs = {k: number(g[k]) for k in ("flops", "bytes", "weight_bytes")}
        return {k: g[k] for k in _OF_GROUPS} | costs | {"results": [type_for_people(t) for t in g["results"]]}

    levels = [level | {"arena": [b | {"bytes": number(b["bytes"])} for b in level["arena"]]} for level in meta["levels"]]
    same = ("name", "producer", "symbols", "states", "checks", "sources", "constants_bytes", "state_bytes")
    return {
        **{k: meta[k] for k in same},
        "inputs": values(meta["inputs"]),
        "outputs": values(meta["outputs"]),
        "groups": list(map(group, meta["groups"])),
        "levels": levels,
        "taken": info.taken,
        "quantised": meta.get("quantised") or [],
    }


def _check_profile(profile: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises DhloError unless the profile's groups and kernels are those of an entry."""
    try:
        check(profile, PROFILE)
    except ValueError as e:
        raise DhloError(f"the profile is malformed: {e}") from None
    entry = entries.get(profile["entry"])
    if entry is None:
        raise DhloError(f"the profile is of entry '{profile['entry']}', which the model doesn't have")
    level = next((x for x in entry["levels"] if x["name"] == profile["level"]), None)
    for row in (row for point in profile["points"] for row in point["groups"]):
        known = level is not None and set(row["kernels"]) <= set(level["launches"]) and -1 <= row["group"] < len(entry["groups"])
        if not known:
            raise DhloError(f"the profile is of another model, '{profile['model']}': its kernels aren't this model's")


def _fill(data: Mapping[str, Any], title: str) -> str:
    """The template with style, scripts and data in it. The page may run these scripts alone, and load nothing."""
    folder = files("dhlo.report") / "assets"
    style = (folder / "page.css").read_text()
    script = '"use strict";\n' + "\n".join((folder / name).read_text() for name in _SCRIPTS)
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    # What ends the element, or begins one, can stand in no other place of JSON than in a string.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = (folder / "page.html").read_text()
    title = title.replace("&", "&amp;").replace("<", "&lt;")
    parts = {"title": title, "policy": policy, "style": style, "script": script, "data": text}
    out = []
    for piece in page.split("{{"):  # once: what is filled in isn't looked at again
        name, end, rest = piece.partition("}}")
        out.append(parts[name] + rest if end else piece)
    return "".join(out)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
