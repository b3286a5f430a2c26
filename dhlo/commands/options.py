"""What commands take, as the command line declares it: each option once, for the command and for what does its work."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

__all__ = [
    "AdapterRoom",
    "Build",
    "Entry",
    "Imports",
    "Locations",
    "ModelFile",
    "Model",
    "Progress",
    "RequireKey",
    "Serving",
    "ShapeRanges",
    "Task",
    "Threads",
    "grouped",
    "weight_formats",
]

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.so", show_default=False)]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a Python module first: one that defines custom operators or pytree types.",
    ),
]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show what is being done; by default on a terminal.",
        show_default=False,
        callback=lambda wanted: sys.stderr.isatty() if wanted is None else wanted,
    ),
]
RequireKey = Annotated[
    Path | None,
    typer.Option("--require-key", metavar="PUBLIC.pem", help="Refuse a model file that isn't signed with this key."),
]
Entry = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The entry, of a model that was compiled of several programs; by default the first."),
]
ShapeRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--shape-range",
        metavar="NAME=MIN:[OPT:]MAX",
        help="Bounds of a size, and a usual one, by the dim's name or as INPUT.DIM: calls outside are refused, and the compiler "
        "makes use of it. Bounds may be left out (batch=:8:); may be repeated.",
    ),
]
Threads = Annotated[int, typer.Option(min=0, max=1024, help="0: one per processor. DHLO_NUM_THREADS wins.")]
Locations = Annotated[bool, typer.Option("--locations", help="Keep the source line of every op in the text.")]

MOST_GB = 1 << 20  # GiB: what an address can say, and no infinity


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as the command line's library takes it: parameters that are dataclasses become one option for each field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {n: h for n, h in hints.items() if is_dataclass(h)}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        command(**given)

    keyword, parameters = inspect.Parameter.KEYWORD_ONLY, list[inspect.Parameter]()
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            plain = {MISSING: inspect.Parameter.empty}
            parameters += [
                inspect.Parameter(f.name, keyword, default=plain.get(f.default, f.default), annotation=types[f.name])
                for f in fields(groups[name])
            ]
        else:
            parameters.append(parameter.replace(kind=keyword, annotation=hints[name]))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    del run.__wrapped__  # whose signature isn't this one's
    return run


@dataclass(frozen=True, kw_only=True)
class Build:
    """How `dhlo compile` compiles, and what it writes besides."""

    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET[,...]",
            help="The machine to compile for: native (the default), x86-64-v3 (+vnni), x86-64-v4 (+bf16, +vnni, +amx-bf16, "
            "+amx-int8), aarch64 (+dotprod, +i8mm, +bf16, +sve). Several of one architecture go into one file; a machine takes the "
            "last that it can run.",
        ),
    ] = None
    winograd: Annotated[
        bool,
        typer.Option(
            help="Compute convolutions of 2 x 2 and 3 x 3, and of 2 and 3 in one dim, by Winograd's algorithm where that is "
            "faster, with errors of up to 5e-5 of the results' scale; without, 5e-6."
        ),
    ] = True
    symbol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What begins the names that objects, static libraries and headers define (NAME_descriptor, ...), so that several "
            "models fit in one binary; by default the model's name.",
        ),
    ] = None
    header: Annotated[
        Path | None,
        typer.Option(metavar="FILE.h|FILE.hpp", help="Also write a C or C++ header: the model's names, dtypes and a typed call."),
    ] = None
    locations: Locations = False
    name: Annotated[str | None, typer.Option(help="The model's name; by default the file's.")] = None
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FORMAT",
            help="Store constants of products as int4:64, int8, int8:128, f8e4m3fn, f8e5m2, mxfp4, bf16 or f16; those whose name "
            "matches NAME in a format of their own (f32: as they are). max_error=0.1 leaves out what would lose more.",
        ),
    ] = None
    activations: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="Round what is multiplied with quantised weights, as it is read: to int8."),
    ] = ""
    kv_cache: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="Store keys and values that a session keeps (a static cache) as int8, bf16 or f16."),
    ] = ""
    grow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIM",
            help="Arguments, by name or pattern, that come back with something joined to their end along a dim: they grow in "
            "place, in buffers of the caller (docs/caches.md); may be repeated.",
        ),
    ] = None
    pages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SLOTS",
            help="Caches, by name or pattern, that become pools of blocks of so many slots: the program becomes a step over packed "
            "tokens of many sequences (docs/caches.md); may be repeated.",
        ),
    ] = None
    lora: Annotated[
        str | None,
        typer.Option(
            metavar="RANK[:ADAPTERS[:TARGETS]]",
            help="With --pages, room for so many adapters (LoRA) at once, 8 if it isn't said, of this rank at most, in modules "
            "whose names end so (q_proj,v_proj), or in all that can have some (docs/caches.md).",
        ),
    ] = None
    shape_ranges: ShapeRanges = None
    passes: Annotated[
        list[str] | None,
        typer.Option(
            "--pass", metavar="MODULE:NAME", help="Run a pass of yours, too: a dhlo.CustomPass, or a function before `fuse`."
        ),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Without -o: replace the file where there is one already.")] = False
    dump_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the module after each pass there, and on failure how to run the pass alone."),
    ] = None
    debug_info: Annotated[
        bool,
        typer.Option("--debug-info", help="Keep the lines of the user's source that code comes from, for debuggers and profilers."),
    ] = False
    updatable: Annotated[
        bool,
        typer.Option(help="Keep the imported program in the model file, so that `dhlo update-weights` can replace its weights."),
    ] = True
    weights_file: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write the weights to a file of that name beside the model file, rather than into it. Models with equal constants "
            "may share one.",
        ),
    ] = None
    progress: Progress = None
    modules: Imports = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """How a language model of a folder is compiled, and what an engine over it keeps."""

    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            show_default=False,
            help="config.json, weights in safetensors, tokenizer.json, as transformers saves them.",
        ),
    ]
    weights: Annotated[
        list[str] | None,
        typer.Option("--weights", metavar="[NAME=]FORMAT", help="As `dhlo compile --weights`; may be repeated."),
    ] = None
    activations: Annotated[str, typer.Option("--activations", metavar="FORMAT", help="As `dhlo compile --activations`.")] = ""
    kv_cache: Annotated[str, typer.Option("--kv-cache", metavar="FORMAT", help="As `dhlo compile --kv-cache`.")] = ""
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache", metavar="FOLDER", help="Where the compiled model is kept for later starts; by default DHLO_CACHE_DIR."
        ),
    ] = None
    cache_gb: Annotated[
        float | None,
        typer.Option(
            min=0, max=MOST_GB, help="Memory for keys and values, GiB; by default a quarter of what is free.", show_default=False
        ),
    ] = None
    max_positions: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and answer together; by default the model's.")
    ] = None
    prompt_lookup: Annotated[int, typer.Option(min=0, help="Draft so many tokens at most by what was said before; 0: none.")] = 0
    draft_model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A smaller model of the same vocabulary, which drafts tokens for this one to verify."),
    ] = None
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of its drafts at most, 8 by default; fewer where fewer pay.")
    ] = None
    draft_branches: Annotated[
        int | None,
        typer.Option(min=1, max=32, help="So many of its drafts at most follow the same token, 4 by default; 1: no tree of them."),
    ] = None
    cache_folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep keys and values there that memory has no room for, also for later starts."),
    ] = None
    cache_folder_gb: Annotated[
        float | None, typer.Option(min=0, max=MOST_GB, help="At most so many GiB there; 16 by default.", show_default=False)
    ] = None
    cache_store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The same as objects of a store: s3://BUCKET/PREFIX, gs://..., az://..., file:///FOLDER."),
    ] = None
    evict_to: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Keep keys and values of so many tokens of a sequence at most, a multiple of 16: it goes on without others.",
        ),
    ] = None
    evict_sinks: Annotated[
        int | None, typer.Option(min=0, metavar="BLOCKS", help="That stay at its beginning, of 16 tokens; 1 by default.")
    ] = None
    evict_recent: Annotated[int | None, typer.Option(min=0, metavar="BLOCKS", help="That stay at its end; 1 by default.")] = None
    evict_by: Annotated[
        str | None,
        typer.Option(
            metavar="recent|norms",
            help="Which others go: the oldest, as is the default, or those whose values are smallest beside their keys.",
        ),
    ] = None
    threads: Threads = 0
    progress: Progress = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a server does, and how texts become vectors."""

    task: Annotated[
        str,
        typer.Option(
            metavar="auto|generate|embed",
            help="Continue texts, or make vectors of them (/v1/embeddings); auto: as modules.json and the architecture say.",
        ),
    ] = "auto"
    pooling: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Of vectors: mean, cls, last, max, ... in place of what the folder says."),
    ] = None
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize", help="Make vectors of length 1, or don't, whatever the folder says.", show_default=False
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How much work an engine of a server takes on."""

    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="Answers in work at once; as many as there is room for, up to 128.")
    ] = None
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that wait; more are told to come again.")] = 1024
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step: longer prompts go in parts.")] = 256
    preemption: Annotated[
        str,
        typer.Option(
            metavar="recompute|swap",
            help="What becomes of an answer's keys and values where memory for others is short: they are computed again, or copied "
            "out and back.",
        ),
    ] = "recompute"
    swap_gb: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MOST_GB,
            help="Memory of what is swapped out at most, GiB; by default as much as keys and values have.",
            show_default=False,
        ),
    ] = None
    tensor_parallel: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that share the model, each with its part of weights and blocks.")
    ] = 1


@dataclass(frozen=True, kw_only=True)
class AdapterRoom:
    """Adapters (LoRA) of a language model."""

    lora_modules: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="An adapter (LoRA, as PEFT writes it), by its name; may be repeated."),
    ] = None
    max_loras: Annotated[
        int, typer.Option(min=0, max=1024, help="Room for so many adapters at once; by default for those of --lora-modules.")
    ] = 0
    max_lora_rank: Annotated[int | None, typer.Option(min=1, max=1024, help="That adapters may have; 16 by default.")] = None


def weight_formats(given: list[str] | None) -> dict[str, str]:
    """What `--weights` says, as [NAME=]FORMAT, by name; `default` is what goes without."""
    return {name or "default": form for name, _, form in (w.rpartition("=") for w in given or ())}
