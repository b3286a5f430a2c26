"""`dhlo compile`, and what shows what it makes: plan, inspect, opt."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dhlo.command_line.app import app
from dhlo.commands.options import Build, Entry, Imports, Locations, Progress, RequireKey, grouped


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


def _list_stages(wanted: bool) -> None:
    if wanted:
        from dhlo.pipeline import STAGES

        for stage in STAGES:
            typer.echo(f"{stage.name:24}{stage.summary}")
        raise typer.Exit


@app.command("compile")
@grouped
def compile_command(
    *,
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
    how: Build,
) -> None:
    """Compile an exported program once, for every shape."""
    from dhlo.commands.compile import Emit, compile_file

    if emit not in list(Emit):
        raise typer.BadParameter(f"'{emit}' is none of {', '.join(Emit)}", param_hint="--emit")
    compile_file(sources, output, Emit(emit), how)


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
        progress=bool(progress),
        modules=modules or [],
        require_key=require_key,
        entry=entry,
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
        progress=bool(progress),
        modules=modules or [],
    )


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
