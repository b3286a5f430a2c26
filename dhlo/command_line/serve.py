"""`dhlo serve`, `dhlo generate` and `dhlo transcribe`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dhlo.command_line.app import app
from dhlo.commands.options import AdapterRoom, Model, Serving, Task, grouped


@app.command("serve")
@grouped
def serve_command(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name for clients; by default the folder's.")] = None,
    api_keys: Annotated[
        list[str] | None,
        typer.Option("--api-key", metavar="KEY", envvar="DHLO_API_KEY", help="A key that clients may use; may be repeated."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer at most.")] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, max=86400, help="That requests in work have once the server is told to end.")
    ] = 30,
    room: AdapterRoom,
    allow_lora_loading: Annotated[
        bool, typer.Option("--allow-lora-loading", help="Let clients load adapters, of folders that this process can read.")
    ] = False,
    task: Task,
    load: Serving,
    model: Model,
) -> None:
    """Serve a language model or an embedding model from a folder, for clients of OpenAI's interface; see docs/serving.md."""
    from dhlo.commands.serve import serve_folder

    serve_folder(
        model,
        load,
        task,
        host=host,
        port=port,
        name=name,
        api_keys=api_keys or [],
        max_tokens=max_tokens,
        drain_seconds=drain_seconds,
        room=room,
        load_adapters=allow_lora_loading,
    )


@app.command("generate")
@grouped
def generate_command(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False, help="What to continue; -: standard input.")],
    room: AdapterRoom,
    chat: Annotated[
        bool, typer.Option("--chat", help="Answer the text, as a message of a chat, by the folder's template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens at most.")] = 256,
    temperature: Annotated[float | None, typer.Option(min=0, help="0: the most likely tokens; by default the model's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Of what is chosen at random.")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Continue by this one of --lora-modules; by default by the only one.", show_default=False
        ),
    ] = None,
    beams: Annotated[
        int, typer.Option(min=0, max=256, help="Beam search with so many beams, whose best text is given; 0: none.")
    ] = 0,
) -> None:
    """Continue a text by a language model from a folder, on the terminal as it comes."""
    from dhlo.commands.serve import generate_text

    generate_text(
        model,
        sys.stdin.read() if text == "-" else text,
        chat=chat,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop or [],
        room=room,
        adapter=adapter,
        beams=beams,
    )


@app.command("transcribe")
@grouped
def transcribe_command(
    model: Model,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", show_default=False, help="Recordings: WAV, FLAC, Ogg, MP3, ...")
    ],
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="That is spoken, such as en; by default the model finds it out.")
    ] = None,
    translate: Annotated[bool, typer.Option("--translate", help="Write what is said in English.")] = False,
    form: Annotated[str, typer.Option("--format", metavar="text|srt|vtt", help="Plain text, or subtitles.")] = "text",
    earlier: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="What was said before, or how words are written.")
    ] = None,
) -> None:
    """Write down what is said in recordings, by a model of speech (Whisper) from a folder; see docs/serving.md."""
    from dhlo.commands.transcribe import transcribe_files

    transcribe_files(model, files, language=language, translate=translate, form=form, earlier=earlier)
