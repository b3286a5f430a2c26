"""`dhlo run` and `dhlo bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dhlo.command_line.app import app
from dhlo.commands.options import Entry, Imports, ModelFile, RequireKey, ShapeRanges, Threads


@app.command("run")
def run_command(
    model: ModelFile,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE", help="An input's data: a .npy or .pt file, or a number."),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=2x7",
            help="Shape of a generated input, or a symbol and its size; what follows from others may be left out.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the outputs: .pt, .npz or .npy.")] = None,
    repeat: Annotated[int, typer.Option(min=0, help="Timed runs after a first one.")] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Show the time in each kernel.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="TRACE.json", help="Write what each thread did in the timed runs, for Perfetto."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of generated inputs.")] = 0,
    entry: Entry = None,
    threads: Threads = 0,
    weights: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Other weights: a weights file made for the model, or .safetensors files."),
    ] = None,
    require_key: RequireKey = None,
) -> None:
    """Run a model file. Generated inputs are normal numbers, 0 or 1 for integers, true for bool."""
    from dhlo.commands.run import run_file

    run_file(
        model,
        inputs or [],
        shapes or [],
        repeat=repeat,
        profile=profile,
        trace=trace,
        output=output,
        seed=seed,
        threads=threads,
        entry=entry,
        require_key=require_key,
        weights=weights or [],
    )


@app.command("bench")
def bench_command(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL.pt2|MODEL.so", show_default=False, help="Other compilers take part only with a .pt2 file."),
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=2x7,...", help="Shapes of inputs, or sizes, to measure at; may be repeated."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="NAME=LOW:HIGH[:STEP]",
            help="Sizes to measure at: a size's name, or INPUT.DIM; a step of x2 doubles.",
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="NAME,...", help="By default eager, inductor, ort, openvino and dhlo, if installed."),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: DHLO_NUM_THREADS, or one per processor.")] = 0,
    budget: Annotated[float, typer.Option(min=0, help="Seconds of timing, after compilation.")] = 10,
    explained: Annotated[
        bool, typer.Option("--explain", help="Show each kernel's time, rates and share of the machine's ceiling.")
    ] = False,
    save_profile: Annotated[
        Path | None,
        typer.Option(
            "--save-profile", metavar="PROFILE.json", help="Write what --explain measures, for `dhlo inspect --html --profile`."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw latency against size; needs matplotlib.")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON; -: print them in place of the tables.")
    ] = None,
    entry: Entry = None,
    shape_ranges: ShapeRanges = None,
    accuracy: Annotated[
        list[str] | None,
        typer.Option(
            "--accuracy",
            metavar="FORMAT",
            help="Instead of timing, show what results lose with weights in a format of `dhlo compile --weights`, or, as "
            "kv_cache=FORMAT, with a cache in one of `--kv-cache`; several at once with commas "
            "(int4:64,activations=int8); may be repeated.",
        ),
    ] = None,
    modules: Imports = None,
) -> None:
    """Time a model beside other compilers; the shape changes at every call. Shapes are made up where none are given."""
    from dhlo.commands.bench import bench_file

    bench_file(
        model,
        shapes=shapes or [],
        ranges=ranges or [],
        peers=peers or [],
        threads=threads,
        budget=budget,
        explained=explained,
        save_profile=save_profile,
        plot=plot,
        accuracy=accuracy or [],
        modules=modules or [],
        shape_ranges=shape_ranges or [],
        entry=entry,
        as_json=as_json,
    )
