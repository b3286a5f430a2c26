"""The program `dhlo`: what holds for all its commands."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A dynamic-shape compiler for PyTorch: one native binary serves every shape.",
)


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
