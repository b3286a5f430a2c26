"""`dhlo inspect`: the contract, the fused groups, the kernels and the memory plan of a model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dhlo import _runtime
from dhlo.api import compile as compile_model
from dhlo.api import open_model
from dhlo.commands.compile import read_program
from dhlo.commands.console import console, megabytes, print_table
from dhlo.commands.shapes import assignments, complete_shapes
from dhlo.errors import ContractError
from dhlo.signature import signature

__all__ = ["inspect_file"]


def inspect_file(
    path: Path,
    *,
    contract: bool,
    groups: bool,
    kernels: bool,
    buffers: bool,
    plans: Sequence[str],
    progress: bool,
    modules: Sequence[str],
) -> None:
    """Prints the chosen views, or contract and summary if none is chosen. A .pt2 file is compiled first, in memory."""
    if path.suffix == ".pt2":
        model = compile_model(read_program(path, modules), name=path.stem, progress=progress).native
    else:
        model = open_model(path)
    meta = json.loads(model.metadata)
    if contract or not (groups or kernels or buffers or plans):
        console().print(signature(model), markup=False)
    if not (contract or groups or kernels or buffers or plans):
        _summary(model, meta)
    if groups:
        print_table(
            f"{len(meta['groups'])} groups",
            ("#", "anchor", "ops", "results"),
            (
                (n, g["anchor"], _ops(g["ops"]), ", ".join(map(_type, g["results"])))
                for n, g in enumerate(meta["groups"])
            ),
            right=("#",),
        )
    if kernels:
        counts = Counter(model.launches)
        print_table(
            f"{len(counts)} kernels, {len(model.launches)} launch sites",
            ("kernel", "launch sites"),
            counts.most_common(),
            right=("launch sites",),
        )
    if buffers:
        print_table(
            f"{len(meta['arena'])} buffers in the arena",
            ("buffer", "bytes", "from step", "to step"),
            ((b["name"], b["bytes"], b["first"], b["last"]) for b in meta["arena"]),
            right=("from step", "to step"),
        )
    for text in plans:
        _plan(model, text)


def _summary(model: _runtime.Model, meta: dict[str, Any]) -> None:
    console().print(
        f"code: {len(meta['groups'])} groups, {len(set(model.launches))} kernels, {len(model.launches)} launch sites\n"
        f"weights: {megabytes(model.constants_bytes)}\narena: {len(meta['arena'])} buffers\nCPU: {model.cpu_features}",
        markup=False,
    )


def _plan(model: _runtime.Model, text: str) -> None:
    shapes = complete_shapes(model.inputs, assignments([t for t in text.split(",") if t], model.inputs))
    try:
        plan = model.plan([list(s) for s in shapes])
    except ValueError as e:
        raise ContractError(str(e)) from None
    rows = [("input", v["name"], v["dtype"], _sizes(s)) for v, s in zip(model.inputs, shapes, strict=True)]
    rows += [
        ("output", v["name"], v["dtype"], "depends on data" if s is None else _sizes(s))
        for v, (_, s) in zip(model.outputs, plan["outputs"], strict=True)
    ]
    print_table(f"plan at {text}", ("", "name", "dtype", "shape"), rows)
    arena, peak = plan["arena_bytes"], plan["peak_live_bytes"]
    console().print(
        f"arena {arena} bytes ({megabytes(arena)}), at least {peak} live at once"
        + (f", ratio {arena / peak:.3f}" if peak else "")
        + f", {plan['num_launches']} launch sites"
        + ("; sizes that depend on data are not counted" if plan["data_dependent"] else "")
    )


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _ops(names: Sequence[str]) -> str:
    """`mul x2, add, exp`: the dialect's prefix left out, runs counted."""
    runs = [(name.removeprefix("dhlo."), len(list(run))) for name, run in groupby(names)]
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in runs)


def _type(text: str) -> str:
    """`f32[batch, 64]` for `tensor<?x64xf32, #dhlo.shape<["batch", "64"]>>`."""
    from dhlo import mlir
    from dhlo.shape_infer.symbols import show
    from dhlo.types import from_mlir

    with mlir.context():
        t = from_mlir(mlir.ir.Type.parse(text))
    return f"{t.dtype}[{', '.join(map(show, t.shape))}]"
