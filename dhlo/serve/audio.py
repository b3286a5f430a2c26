"""Recordings: from the bytes of a file to samples, and from long ones to pieces."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dhlo.errors import ContractError

__all__ = ["Samples", "cut", "read_audio"]

Samples = NDArray[np.float32]
"""Of one channel, from -1 to 1."""

_BLOCK_SECONDS: Final = 10
_MOST_RATE: Final = 768_000
_MOST_CHANNELS: Final = 32
_QUIET: Final = 0.1  # seconds over which loudness is measured
_TAIL: Final = 5.0  # a piece ends where it is quietest in so many of its last seconds


def read_audio(recording: bytes | Path, rate: int, most_seconds: float) -> Samples:
    """The samples of a recording in any form that libsndfile reads (WAV, FLAC, Ogg, MP3, ...), the mean of its channels, at `rate`
    samples a second. Raises ContractError for what is no recording, a longer one, and where the libraries aren't there."""
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as e:  # OSError: the wheel of another system
        raise ContractError(f"recordings need the libraries soundfile and soxr (pip install 'dhlo[speech]'): {e}") from None
    source = io.BytesIO(recording) if isinstance(recording, bytes) else str(recording)
    parts, length = list[Samples](), 0
    try:
        with soundfile.SoundFile(source) as file:
            if not 1 <= file.channels <= _MOST_CHANNELS or not 1000 <= file.samplerate <= _MOST_RATE:
                raise ContractError(f"a recording of {file.channels} channels at {file.samplerate} samples a second isn't taken")
            resampled = soxr.ResampleStream(file.samplerate, rate, 1, dtype="float32")
            last = False
            while not last:  # headers needn't be right about lengths
                block: Any = file.read(_BLOCK_SECONDS * file.samplerate, dtype="float32", always_2d=True)
                last = len(block) < _BLOCK_SECONDS * file.samplerate
                parts.append(resampled.resample_chunk(np.ascontiguousarray(block.mean(1, dtype=np.float32)), last=last))
                length += len(parts[-1])
                if length > most_seconds * rate:
                    raise ContractError(f"the recording is longer than {most_seconds:g} seconds")
    except (soundfile.SoundFileError, RuntimeError, OSError, MemoryError) as e:
        why = getattr(e, "error_string", str(e))  # without the source's address
        raise ContractError(f"the recording can't be read: {why[:300]}") from None
    samples = np.concatenate(parts)
    if not np.isfinite(samples).all():
        raise ContractError("the recording has samples that are no numbers")
    return samples


def cut(samples: Samples, rate: int, most_seconds: float) -> list[Samples]:
    """Pieces of at most so many seconds, which together are the whole. Each but the last ends where it is quietest in the last five
    seconds that it may have, so that words stay whole. No samples are no pieces."""
    most, tail, step = int(most_seconds * rate), int(min(_TAIL, most_seconds / 2) * rate), int(_QUIET * rate)
    ends = [0]
    while len(samples) - ends[-1] > most:
        first = ends[-1] + most - tail
        windows = samples[first : first + tail // step * step].reshape(-1, step)
        ends.append(first + int(np.argmin(np.square(windows, dtype=np.float64).sum(1))) * step + step // 2)
    return [samples[a:b] for a, b in pairwise([*ends, len(samples)]) if b > a]
