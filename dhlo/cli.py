"""The command line: dhlo compile, run, serve, generate, plan, bench, inspect, update-weights, sign, verify, keygen, opt, flags."""

from __future__ import annotations

import inspect
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import dhlo
from dhlo.errors import DhloError, InternalError

__all__ = ["app"]


class _Group(TyperGroup):
    """Errors that are about the user's input become one message and exit code 1."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # names of files are bytes, and terminals may not know all letters
        try:
            return super().main(*args, **kwargs)
        except MemoryError as e:
            typer.echo(f"error: not enough memory{f': {e}' if str(e) else ''}", err=True)
        except (DhloError, OSError) as e:
            kind = "internal error, please report it" if isinstance(e, InternalError) else "error"
            typer.echo(f"{kind}: {e}", err=True)
        sys.exit(1)


def _pass_flags() -> list[Any]:
    """A flag for every pass, made when the command is used: the passes need the compiler."""
    from dhlo.pipeline import REWRITES

    def flags(**_: bool) -> None:
        """Takes the flags."""

    annotations = {
        p.name.replace("-", "_"): Annotated[bool, typer.Option(f"--{p.name}", help=f"{p.summary}.", expose_value=False)]
        for p in REWRITES
    }
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, keyword, default=False, annotation=a) for n, a in annotations.items()]
    flags.__annotations__ = dict(annotations)
    flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    tool = typer.Typer(add_completion=False)
    tool.command()(flags)
    return list(typer.main.get_command(tool).params)


class _OptCommand(TyperCommand):
    """One flag a pass, and the order in which they came in `ctx.meta["passes"]`."""

    _flags: list[Any] | None = None

    def get_params(self, ctx: Any) -> Any:
        if self._flags is None:
            self._flags = _pass_flags()
            self.params += self._flags
        return super().get_params(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        from dhlo.pipeline import REWRITES

        names = {f"--{p.name}": [p.name] for p in REWRITES} | {"--pipeline": [p.name for p in REWRITES]}
        ctx.meta["passes"] = [n for a in args for n in names.get(a, [])]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A dynamic-shape compiler for PyTorch: one native binary serves every shape.",
)

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
    typer.Option("--progress/--no-progress", help="Show what is being done; by default on a terminal.", show_default=False),
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
ModelFolder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        show_default=False,
        help="config.json, weights in safetensors, tokenizer.json, as transformers saves them.",
    ),
]
StepWeights = Annotated[
    list[str] | None, typer.Option("--weights", metavar="[NAME=]FORMAT", help="As `dhlo compile --weights`; may be repeated.")
]
StepCaches = Annotated[str, typer.Option("--kv-cache", metavar="FORMAT", help="As `dhlo compile --kv-cache`.")]
StepFolder = Annotated[
    str | None,
    typer.Option("--cache", metavar="FOLDER", help="Where the compiled model is kept for later starts; by default DHLO_CACHE_DIR."),
]
CacheMemory = Annotated[
    float | None,
    typer.Option(
        "--cache-gb", min=0, help="Memory for keys and values, GiB; by default a quarter of what is free.", show_default=False
    ),
]
Positions = Annotated[
    int | None, typer.Option("--max-positions", min=2, help="Tokens of prompt and answer together; by default the model's.")
]
Lookup = Annotated[
    int, typer.Option("--prompt-lookup", min=0, help="Draft so many tokens at most by what was said before; 0: none.")
]
BlocksFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache-folder", metavar="FOLDER", help="Keep keys and values there that memory has no room for, also for later starts."
    ),
]
BlocksMost = Annotated[float, typer.Option("--cache-folder-gb", min=0, help="At most so many GiB there.")]
Threads = Annotated[int, typer.Option(min=0, max=1024, help="0: one per processor. DHLO_NUM_THREADS wins.")]
Locations = Annotated[bool, typer.Option("--locations", help="Keep the source line of every op in the text.")]


def _list_stages(wanted: bool) -> None:
    if wanted:
        from dhlo.pipeline import STAGES

        for stage in STAGES:
            typer.echo(f"{stage.name:24}{stage.summary}")
        raise typer.Exit


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dhlo {dhlo.__version__}")
        raise typer.Exit


def _cmake_dir(wanted: bool) -> None:
    if wanted:
        from dhlo.commands.flags import cmake_dir

        typer.echo(cmake_dir())
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    cmake: Annotated[
        bool,
        typer.Option(
            "--cmake-dir",
            callback=_cmake_dir,
            is_eager=True,
            help="Print the folder for CMake's find_package(dhlo): -Ddhlo_DIR=...",
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command("compile")
def compile_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL.pt2 | ENTRY=MODEL.pt2 ... | hf:FOLDER",
            show_default=False,
            help="A file of torch.export.save that you trust: reading it can run code. Several, each with a name, become entries "
            "of one model, which share weights and state. Or a folder of transformers (config.json, safetensors).",
        ),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write; by default the current folder.")] = None,
    emit: Annotated[
        str,
        typer.Option(
            help="so: model file; obj: object and constants; archive: static library of both; mlir: the imported "
            "module; planned: the module after all passes; llvm, asm: generated code.",
            metavar="so|obj|archive|mlir|planned|llvm|asm",
        ),
    ] = "so",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET[,...]",
            help="The machine to compile for: native (the default), x86-64-v3 (+vnni), x86-64-v4 (+bf16, +vnni, +amx-bf16, "
            "+amx-int8), aarch64 (+dotprod, +i8mm, +bf16, +sve). Several of one architecture go into one file; a machine takes the "
            "last that it can run.",
        ),
    ] = None,
    winograd: Annotated[
        bool,
        typer.Option(
            help="Compute convolutions of 2 x 2 and 3 x 3, and of 2 and 3 in one dim, by Winograd's algorithm where that is "
            "faster, with errors of up to 5e-5 of the results' scale; without, 5e-6."
        ),
    ] = True,
    symbol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What begins the names that objects, static libraries and headers define (NAME_descriptor, ...), so that several "
            "models fit in one binary; by default the model's name.",
        ),
    ] = None,
    header: Annotated[
        Path | None,
        typer.Option(metavar="FILE.h|FILE.hpp", help="Also write a C or C++ header: the model's names, dtypes and a typed call."),
    ] = None,
    locations: Locations = False,
    name: Annotated[str | None, typer.Option(help="The model's name; by default the file's.")] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FORMAT",
            help="Store constants of products as int4:64, int8, int8:128, f8e4m3fn, f8e5m2, mxfp4, bf16 or f16; those whose name "
            "matches NAME in a format of their own (f32: as they are). max_error=0.1 leaves out what would lose more.",
        ),
    ] = None,
    kv_cache: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="Store keys and values that a session keeps (a static cache) as int8, bf16 or f16."),
    ] = "",
    grow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIM",
            help="Arguments, by name or pattern, that come back with something joined to their end along a dim: they grow in "
            "place, in buffers of the caller (docs/caches.md); may be repeated.",
        ),
    ] = None,
    pages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SLOTS",
            help="Caches, by name or pattern, that become pools of blocks of so many slots: the program becomes a step over packed "
            "tokens of many sequences (docs/caches.md); may be repeated.",
        ),
    ] = None,
    shape_ranges: ShapeRanges = None,
    passes: Annotated[
        list[str] | None,
        typer.Option(
            "--pass", metavar="MODULE:NAME", help="Run a pass of yours, too: a dhlo.CustomPass, or a function before `fuse`."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Without -o: replace the file where there is one already.")] = False,
    dump_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the module after each pass there, and on failure how to run the pass alone."),
    ] = None,
    debug_info: Annotated[
        bool,
        typer.Option("--debug-info", help="Keep the lines of the user's source that code comes from, for debuggers and profilers."),
    ] = False,
    updatable: Annotated[
        bool,
        typer.Option(help="Keep the imported program in the model file, so that `dhlo update-weights` can replace its weights."),
    ] = True,
    weights_file: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write the weights to a file of that name beside the model file, rather than into it. Models with equal constants "
            "may share one.",
        ),
    ] = None,
    progress: Progress = None,
    modules: Imports = None,
) -> None:
    """Compile an exported program once, for every shape."""
    from dhlo.commands.compile import Emit, compile_file

    if emit not in list(Emit):
        raise typer.BadParameter(f"'{emit}' is none of {', '.join(Emit)}", param_hint="--emit")
    show = sys.stderr.isatty() if progress is None else progress
    formats = {name or "default": value for name, _, value in (w.rpartition("=") for w in weights or [])}
    compile_file(
        sources,
        output,
        Emit(emit),
        name=name,
        progress=show,
        modules=modules or [],
        locations=locations,
        target=target,
        weights=formats,
        winograd=winograd,
        kv_cache=kv_cache,
        grow=grow or [],
        pages=pages or [],
        symbol=symbol,
        header=header,
        shape_ranges=shape_ranges or [],
        force=force,
        dump_dir=dump_dir,
        passes=passes or [],
        debug_info=debug_info,
        updatable=updatable,
        weights_file=weights_file,
    )


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
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one per processor. DHLO_NUM_THREADS wins.")] = 0,
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


@app.command("serve")
def serve_command(
    folder: ModelFolder,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name for clients; by default the folder's.")] = None,
    api_keys: Annotated[
        list[str] | None,
        typer.Option("--api-key", metavar="KEY", envvar="DHLO_API_KEY", help="A key that clients may use; may be repeated."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer at most.")] = None,
    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="Answers in work at once; as many as there is room for, up to 256.")
    ] = None,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that wait; more are told to come again.")] = 1024,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step: longer prompts go in parts.")] = 512,
    drain_seconds: Annotated[float, typer.Option(min=0, help="That requests in work have once the server is told to end.")] = 30,
    weights: StepWeights = None,
    kv_cache: StepCaches = "",
    cache: StepFolder = None,
    cache_gb: CacheMemory = None,
    max_positions: Positions = None,
    prompt_lookup: Lookup = 0,
    cache_folder: BlocksFolder = None,
    cache_folder_gb: BlocksMost = 16,
    threads: Threads = 0,
    progress: Progress = None,
) -> None:
    """Serve a language model from a folder, for clients of OpenAI's interface; see docs/serving.md."""
    from dhlo.commands.serve import Sizes, serve_folder

    sizes = Sizes(
        weights=weights or [],
        kv_cache=kv_cache,
        cache=cache,
        threads=threads,
        cache_gb=cache_gb,
        max_positions=max_positions,
        max_sequences=max_sequences,
        max_waiting=max_waiting,
        max_step_tokens=max_step_tokens,
        prompt_lookup=prompt_lookup,
        cache_folder=cache_folder,
        cache_folder_gb=cache_folder_gb,
    )
    serve_folder(
        folder,
        sizes,
        host=host,
        port=port,
        name=name,
        api_keys=api_keys or [],
        max_tokens=max_tokens,
        drain_seconds=drain_seconds,
        progress=sys.stderr.isatty() if progress is None else progress,
    )


@app.command("generate")
def generate_command(
    folder: ModelFolder,
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False, help="What to continue; -: standard input.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="Answer the text, as a message of a chat, by the folder's template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens at most.")] = 256,
    temperature: Annotated[float | None, typer.Option(min=0, help="0: the most likely tokens; by default the model's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Of what is chosen at random.")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")] = None,
    weights: StepWeights = None,
    kv_cache: StepCaches = "",
    cache: StepFolder = None,
    cache_gb: CacheMemory = None,
    max_positions: Positions = None,
    prompt_lookup: Lookup = 0,
    cache_folder: BlocksFolder = None,
    cache_folder_gb: BlocksMost = 16,
    threads: Threads = 0,
    progress: Progress = None,
) -> None:
    """Continue a text by a language model from a folder, on the terminal as it comes."""
    from dhlo.commands.serve import Sizes, generate_text

    sizes = Sizes(
        weights=weights or [],
        kv_cache=kv_cache,
        cache=cache,
        threads=threads,
        cache_gb=cache_gb,
        max_positions=max_positions,
        prompt_lookup=prompt_lookup,
        cache_folder=cache_folder,
        cache_folder_gb=cache_folder_gb,
    )
    generate_text(
        folder,
        sys.stdin.read() if text == "-" else text,
        sizes,
        chat=chat,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop or [],
        progress=sys.stderr.isatty() if progress is None else progress,
    )


@app.command("plan")
def plan_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL.so|MODEL.pt2", show_default=False, help="A .pt2 file is compiled first.")],
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=2x7,...", help="Shapes of inputs, or sizes; may be repeated."),
    ] = None,
    entry: Entry = None,
    require_key: RequireKey = None,
    progress: Progress = None,
    modules: Imports = None,
) -> None:
    """Show output shapes and memory at given shapes. Loads the model's code, but doesn't run it on data."""
    from dhlo.commands.plan import plan_file

    plan_file(
        model,
        shapes or [],
        progress=sys.stderr.isatty() if progress is None else progress,
        modules=modules or [],
        require_key=require_key,
        entry=entry,
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
            "kv_cache=FORMAT, with a cache in one of `--kv-cache`; may be repeated.",
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


@app.command("inspect")
def inspect_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL.so|MODEL.pt2", show_default=False, help="A .pt2 file is compiled first.")],
    contract: Annotated[bool, typer.Option("--contract", help="Arguments, results, sizes, checks.")] = False,
    groups: Annotated[bool, typer.Option("--groups", help="What was fused.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Compiled kernels and where they are used.")] = False,
    buffers: Annotated[bool, typer.Option("--buffers", help="Symbolic sizes and lifetimes in the arena.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="REPORT.html", help="Write all of it as one page for a browser instead.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="PROFILE.json", help="Show the times of `dhlo bench --save-profile` in the page."),
    ] = None,
    entry: Entry = None,
    progress: Progress = None,
    modules: Imports = None,
) -> None:
    """Show what a model expects and what it is made of. Verifies a model file and executes nothing of it."""
    from dhlo.commands.inspect import inspect_file

    inspect_file(
        model,
        contract=contract,
        groups=groups,
        kernels=kernels,
        buffers=buffers,
        html=html,
        profile=profile,
        entry=entry,
        progress=sys.stderr.isatty() if progress is None else progress,
        modules=modules or [],
    )


@app.command("update-weights")
def update_weights_command(
    model: ModelFile,
    weights: Annotated[
        list[Path],
        typer.Argument(metavar="WEIGHTS.safetensors...", show_default=False, help="By the names of the module's state dict."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", show_default=False, help="By default, the model file is replaced.")
    ] = None,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Leave out weights that the model doesn't have.")
    ] = False,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Write a weights file alone, to load with the model: dhlo run --weights.")
    ] = False,
) -> None:
    """Give a model file other weights; its code stays as it is."""
    from dhlo.commands.console import console
    from dhlo.update import update_weights

    path = update_weights(model, weights, output, strict=not ignore_unknown, weights_only=weights_only)
    console().print(f"{path}")


@app.command("weights")
def weights_command(
    model: ModelFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="WEIGHTS.safetensors", show_default=False, help="The file to write.")
    ],
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out what can't be had back exactly: quantised, converted, folded into others.")
    ] = False,
) -> None:
    """Write a model file's weights as update-weights takes them, by the names of the module's state dict."""
    from dhlo.commands.console import console
    from dhlo.container import check_apart
    from dhlo.recovery import read_weights
    from dhlo.update import write_safetensors

    check_apart([output], [model])
    tensors = read_weights(model, partial=partial)
    write_safetensors(output, tensors)
    console().print(f"{output}: {len(tensors)} tensors")


@app.command("keygen")
def keygen_command(
    private: Annotated[Path, typer.Argument(metavar="PRIVATE.pem", show_default=False)],
    public: Annotated[Path, typer.Argument(metavar="PUBLIC.pem", show_default=False)],
) -> None:
    """Make a pair of Ed25519 keys, for sign and verify."""
    from dhlo.commands.sign import make_keys

    make_keys(private, public)


@app.command("sign")
def sign_command(
    model: ModelFile,
    key: Annotated[Path, typer.Option("--key", metavar="PRIVATE.pem", show_default=False, help="An Ed25519 private key.")],
) -> None:
    """Write a model file's signature beside it, as MODEL.so.sig."""
    from dhlo.commands.sign import sign_model

    sign_model(model, key)


@app.command("verify")
def verify_command(
    model: ModelFile,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="PUBLIC.pem", show_default=False, help="Also check the signature with this key."),
    ] = None,
) -> None:
    """Verify every byte of a model file, and its signature; executes nothing of it."""
    from dhlo.commands.sign import verify_model

    verify_model(model, key)


@app.command("opt", cls=_OptCommand)
def opt_command(
    ctx: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(metavar="IN.mlir", show_default=False, help="A module in the dhlo dialect; - is standard input."),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="By default, standard output.")] = None,
    print_after: Annotated[
        list[str] | None,
        typer.Option("--print-after", metavar="PASS|all", help="Print the module after a pass, on standard error."),
    ] = None,
    verify_only: Annotated[bool, typer.Option("--verify-only", help="Parse and verify, print nothing.")] = False,
    locations: Locations = False,
    pipeline: Annotated[bool, typer.Option("--pipeline", help="All passes in the compiler's order.")] = False,
    list_stages: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list_stages, is_eager=True, help="Print all stages of the compiler, in order, and what each does."
        ),
    ] = False,
) -> None:
    """Run passes over a module's text, in the order given."""
    from dhlo.commands.opt import opt_file

    opt_file(source, output, ctx.meta["passes"], print_after or [], verify_only, locations)


@app.command("flags")
def flags_command() -> None:
    """Print the C++ compiler's flags for a host program: c++ -std=c++17 host.cpp $(dhlo flags)."""
    from dhlo.commands.flags import host_flags

    typer.echo(" ".join(host_flags()))
