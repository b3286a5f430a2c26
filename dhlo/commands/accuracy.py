"""`dhlo bench --accuracy`: what a program's results lose where its weights or caches are stored in fewer bits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dhlo.api import compile as compile_model
from dhlo.commands.console import cache_summary, console, megabytes, print_table, quantised_summary

__all__ = ["compare_formats"]


def compare_formats(exported: torch.export.ExportedProgram, calls: Sequence[tuple[str, Any, Any]], formats: Sequence[str]) -> None:
    """Prints, for each format (see `Options.weights`, with "kv_cache=" before it `Options.kv_cache`, with "activations="
    `Options.activations`; several separated by commas) and each call (label, arguments, keywords), how far the results are from
    those of the program as it is, compiled and run in the same way. Raises CompileError for formats that there aren't."""
    plain = compile_model(exported)
    want = [_floats(plain(*args, **kwargs)) for _, args, kwargs in calls]
    rows, summaries = [], []
    for text in ("f32", *formats):
        parts = (part.rpartition("=") for part in text.split(","))
        options: dict[str, Any] = {name or "weights": form for name, _, form in parts}
        model = plain if text == "f32" else compile_model(exported, **options)
        facts = json.loads(model.metadata)
        if facts["quantised"]:
            summaries.append(f"{text}: {quantised_summary(facts['quantised'])}")
        if facts["caches"]:
            summaries.append(f"{text}: {cache_summary(facts['caches'])}")
        for (label, args, kwargs), w in zip(calls, want, strict=True):
            got = _floats(model(*args, **kwargs))
            rows.append((text, megabytes(facts["constants_bytes"]), label, *_distances(got, w)))
    head = ("stored as", "bytes", "shape", "relative error", "largest error", "same choice")
    print_table("results beside those of weights and caches as they are", head, rows, right=[*head[1:2], *head[3:]])
    console().print("\n".join(summaries))


def _floats(results: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(results)
    return [t.double() for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _distances(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> Iterator[str]:
    """Error in the Frobenius norm, largest error as a part of the largest result, rows whose largest element is the same."""
    pairs = [(g, w) for g, w in zip(got, want, strict=True) if w.numel()]
    if not pairs:
        return iter(("", "", ""))
    norm = sum(float(w.square().sum()) for _, w in pairs) ** 0.5
    off = sum(float((g - w).square().sum()) for g, w in pairs) ** 0.5
    largest = max(float((g - w).abs().max()) / max(float(w.abs().max()), 1e-300) for g, w in pairs)
    rows = [(g.argmax(-1) == w.argmax(-1)).flatten() for g, w in pairs if w.dim() and w.shape[-1] > 1]
    same = f"{float(torch.cat(rows).double().mean()):.1%}" if rows else ""
    return iter((f"{off / norm if norm else 0.0:.2g}", f"{largest:.2g}", same))
