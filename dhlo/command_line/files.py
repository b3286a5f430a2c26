"""Commands about files that are there: weights, keys and signatures, and what host programs are built with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dhlo.command_line.app import app
from dhlo.commands.options import ModelFile


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


@app.command("flags")
def flags_command() -> None:
    """Print the C++ compiler's flags for a host program: c++ -std=c++17 host.cpp $(dhlo flags)."""
    from dhlo.commands.flags import host_flags

    typer.echo(" ".join(host_flags()))
