"""`dhlo inspect`: the contract, the fused groups, the kernels and the buffers of a model, none of whose code is executed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dhlo.api import build
from dhlo.commands.console import cache_summary, console, megabytes, print_table, quantised_summary, rounded_summary
from dhlo.container import check_apart, write_bytes
from dhlo.errors import DhloError, ModelFileError
from dhlo.exported import read_program
from dhlo.model_file import ModelInfo, WeightsReference, open_sections, read_infos, verify_weights, weights_of
from dhlo.options import Options
from dhlo.progress import reporter
from dhlo.report import read_profile, render_report
from dhlo.signature import signature, type_for_people
from dhlo.signing import describe_signature

__all__ = ["inspect_file"]


def inspect_file(
    path: Path,
    *,
    contract: bool,
    groups: bool,
    kernels: bool,
    buffers: bool,
    progress: bool,
    modules: Sequence[str],
    entry: str | None = None,
    html: Path | None = None,
    profile: Path | None = None,
) -> None:
    """Prints the chosen views, or contract and summary if none is chosen. A .pt2 file is compiled first, in memory.

    Of a model file every byte is verified, and of its weights file, if it has one, which need not be there. `entry` is the one to
    print, where there are several; by default the first. `html` is where to write the report of all entries instead, with the
    times of `profile`, a file of `dhlo bench --save-profile`. Raises ModelFileError, and DhloError if there is no such entry or the
    profile isn't of this model.
    """
    if profile is not None and html is None:
        raise DhloError("a profile is shown in a report: give --html, too")
    check_apart([html], [path] if profile is None else [path, profile])
    times = read_profile(profile) if profile is not None else None
    infos, facts = _read(path, modules, progress)
    if html is not None:
        write_bytes(html, render_report(infos, facts, times).encode())
        console().print(f"{html}: the report of {path}")
        return
    if entry is not None and entry not in infos:
        raise DhloError(f"the model has no entry '{entry}'; it has {', '.join(infos) if '' not in infos else 'only one'}")
    info = infos[next(iter(infos)) if entry is None else entry]
    if len(infos) > 1:
        facts["entries"] = f"{', '.join(infos)}; this is {json.loads(info.metadata)['entry']}"
    meta = json.loads(info.metadata)
    if contract or not (groups or kernels or buffers):
        console().print(signature(info))
    if not (contract or groups or kernels or buffers):
        _summary(info, meta, facts)
    if groups:
        _print_groups(meta)
    if kernels:
        _print_kernels(info)
    if buffers:
        _print_buffers(info)


def _read(path: Path, modules: Sequence[str], progress: bool) -> tuple[dict[str, ModelInfo], dict[str, str]]:
    """A model's entries, and facts about its file, all of whose bytes are verified."""
    if path.suffix == ".pt2":
        with reporter(progress) as tell:
            artifact = build(read_program(path, modules), Options(name=path.stem, progress=progress), tell)[1]
        return {"": ModelInfo.of(artifact.metadata)}, {}
    with open_sections(path) as sections:
        sections.verify()
        facts = {
            "SHA-256": f"{sections.file_digest.hex()} (all sections verified)",
            "signature": describe_signature(path, sections.file_digest),
        }
        if (weights := weights_of(sections)).name:
            facts["weights file"] = f"{weights.name}, {_state_of(path, weights)}"
        return read_infos(sections), facts


def _print_groups(meta: dict[str, Any]) -> None:
    print_table(
        f"{len(meta['groups'])} groups",
        ("#", "anchor", "ops", "results"),
        ((n, g["anchor"], _ops(g["ops"]), ", ".join(map(type_for_people, g["results"]))) for n, g in enumerate(meta["groups"])),
        right=("#",),
    )


def _print_kernels(info: ModelInfo) -> None:
    launches = info.level["launches"]
    counts = Counter(launches)
    print_table(
        f"{len(counts)} kernels, {len(launches)} launch sites{_of(info)}",
        ("kernel", "launch sites"),
        counts.most_common(),
        right=("launch sites",),
    )


def _print_buffers(info: ModelInfo) -> None:
    print_table(
        f"{len(info.level['arena'])} buffers in the arena{_of(info)}",
        ("buffer", "bytes", "from step", "to step"),
        ((b["name"], b["bytes"], b["first"], b["last"]) for b in info.level["arena"]),
        right=("from step", "to step"),
    )


def _state_of(path: Path, weights: WeightsReference) -> str:
    """What became of the weights file beside a model file."""
    try:
        verify_weights(path, weights)
    except ModelFileError as e:
        return f"can't be used: {e}"
    return f"SHA-256 of its constants {weights.digest.hex()} (verified)"


def _of(info: ModelInfo) -> str:
    """Which level a table is about, where there are several."""
    return f" of {info.level['name']}" if len(info.levels) > 1 else ""


def _summary(info: ModelInfo, meta: dict[str, Any], facts: dict[str, str]) -> None:
    launches, arena = info.level["launches"], info.level["arena"]
    rows = [
        f"code{_of(info)}: {len(meta['groups'])} groups, {len(set(launches))} kernels, {len(launches)} launch sites",
        f"weights: {megabytes(info.constants_bytes)}",
        f"state: {megabytes(info.state_bytes)}",
        f"arena: {len(arena)} buffers",
    ]
    for n, level in enumerate(info.levels):
        taken = "taken by this machine" if n == info.taken else "not taken by this machine" if info.taken is not None else ""
        rows.append(f"CPU: {level['name']}" + (f", {taken}" if taken else "") + f"\n  needs {level['cpu_features'] or 'nothing'}")
    if len(info.levels) > 1 and (programs := meta.get("host_programs")):
        rows.append("host program: " + ("one for all levels" if programs == 1 else "one for each level"))
    if info.taken is None:
        rows.append("this machine can run none of them")
    if meta.get("quantised"):
        rows.append(quantised_summary(meta["quantised"]))
    if meta.get("rounded_products"):
        rows.append(rounded_summary(meta["rounded_products"]))
    if meta.get("caches"):
        rows.append(cache_summary(meta["caches"]))
    console().print("\n".join([*rows, *(f"{name}: {text}" for name, text in facts.items())]))
    if meta.get("quantised"):
        console().print()
        print_table(
            "constants of products",
            ("name", "format", "relative error", "before", "after"),
            (
                (r["name"], r["format"], f"{r['error']:.2g}", megabytes(r["before"]), megabytes(r["after"]))
                for r in meta["quantised"]
            ),
            right=("relative error", "before", "after"),
        )
    if meta["states"]:
        console().print()
        caches = {r["name"]: r for r in meta.get("caches", [])}
        _print_states(meta["states"], caches)


def _print_states(states: dict[str, Any], caches: dict[str, Any]) -> None:
    """A table of what a session keeps, as it is stored; with what became of each where caches were asked for in fewer bits."""
    right = ("bytes", *(["before", "error at most"] if caches else []))

    def cells(name: str) -> tuple[str, ...]:
        if name not in caches:
            return ("", "", "") if caches else ()
        r = caches[name]
        return (megabytes(r["before"]), f"{r['error']:.2g}" if r["format"] else "", r["reason"])

    print_table(
        "states",
        ("name", "dtype", "shape", *right, *(["left as it is"] if caches else [])),
        ((name, s["dtype"], "x".join(map(str, s["shape"])), megabytes(s["bytes"]), *cells(name)) for name, s in states.items()),
        right=right,
    )


def _ops(names: Sequence[str]) -> str:
    """`mul x2, add, exp`: the dialect's prefix left out, runs counted."""
    runs = [(name.removeprefix("dhlo."), len(list(run))) for name, run in groupby(names)]
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in runs)
