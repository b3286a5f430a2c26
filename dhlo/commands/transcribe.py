"""`dhlo transcribe`: the text of recordings, by a model of speech from a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dhlo.commands.options import Model, Serving
from dhlo.commands.serve import need_speech, needing_extra, working
from dhlo.errors import ContractError, DhloError

if TYPE_CHECKING:
    from dhlo.serve.audio import Samples
    from dhlo.serve.transcribing import Transcription

__all__ = ["transcribe_files"]

_MOST_SECONDS = 86400.0
_FORMS = ("text", "srt", "vtt")


def transcribe_files(
    model: Model, files: Sequence[Path], *, language: str | None, translate: bool, form: str, earlier: str | None
) -> None:
    """Writes what is said in each file, as it comes; with `form` srt or vtt, subtitles of it. Raises DhloError."""
    if form not in _FORMS:
        raise DhloError(f"--format: '{form}' is none of {', '.join(_FORMS)}")
    with needing_extra():
        from dhlo.serve.audio import read_audio
        from dhlo.serve.folder import hears
        from dhlo.serve.speech_server import subtitles
        from dhlo.serve.transcribing import Asked, Transcription
    need_speech()
    if not hears(model.folder):
        raise ContractError(f"'{model.folder}' reads no recordings: dhlo generate")
    missing = [str(f) for f in files if not f.is_file()]
    if missing:
        raise FileNotFoundError(f"'{missing[0]}' is no file")
    with working(model, Serving(), {}, None) as (served, engine, _):
        speech = served.speech
        assert speech is not None
        words = served.tokenizer.encode(" " + earlier.strip(), special=False) if earlier else ()
        asked = Asked("translate" if translate else "transcribe", speech.language_of(language), form != "text", tuple(words))
        for file in files:
            samples = read_audio(file, speech.features.rate, _MOST_SECONDS)
            heard = Transcription(engine, speech, served.tokenizer, asked)
            asyncio.run(_listen(heard, samples, show=form == "text"))
            if form != "text":
                print(subtitles(heard.segments, form), end="", flush=True)


async def _listen(heard: Transcription, samples: Samples, *, show: bool) -> None:
    try:
        await heard.begin(samples)
        async for part in heard:
            if show:
                print(part, end="", flush=True)
    finally:
        heard.close()
        if show:
            print()
