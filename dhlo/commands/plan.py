"""`dhlo plan`: output shapes and memory of a model at given shapes, from its own code, without running it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dhlo import _runtime
from dhlo.api import compile as compile_model
from dhlo.commands.console import console, megabytes, print_table
from dhlo.commands.shapes import assignments, complete_shapes
from dhlo.errors import ContractError, DhloError
from dhlo.exported import read_program
from dhlo.loading import open_model

__all__ = ["plan_file"]


def plan_file(
    path: Path,
    shapes: Sequence[str],
    *,
    progress: bool,
    modules: Sequence[str],
    require_key: Path | None = None,
    entry: str | None = None,
) -> None:
    """Prints a plan of the model, or its `entry`, for each of `shapes`, as "x=2x7,n=3". A .pt2 file is compiled first, in memory.

    Loads the model's code, so the file must be one that is trusted, or signed with `require_key`. Raises ModelFileError,
    ContractError, and DhloError for an entry that there isn't.
    """
    if path.suffix == ".pt2":
        if entry is not None:
            raise DhloError("--entry is for model files: a .pt2 holds one program")
        model = compile_model(read_program(path, modules), name=path.stem, progress=progress).native
    else:
        model = open_model(path, require_key=require_key, entry=entry)
    for text in shapes or [""]:
        _plan(model, text)


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
