"""What Whisper hears of samples: logarithms of their energy by bands of the mel scale (Radford et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dhlo.errors import ModelFileError
from dhlo.serve.audio import Samples

__all__ = ["LogMel"]

_FLOOR: Final = 1e-10
_RANGE: Final = 8.0  # of logarithms, below the largest of a piece


@dataclass(frozen=True)
class LogMel:
    """As preprocessor_config.json says; `transformers.WhisperFeatureExtractor` computes the same."""

    bands: int = 80
    rate: int = 16000
    """Samples a second."""
    window: int = 400
    """Samples of a frame's spectrum."""
    hop: int = 160
    """Samples from a frame to the next one."""
    seconds: int = 30
    """Of a piece: shorter ones end in silence."""
    _filters: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_filters", _slaney(self.bands, 1 + self.window // 2, self.rate))

    @staticmethod
    def of(said: Mapping[str, Any], path: Path) -> LogMel:
        """Of what is said in the file `path`. Raises ModelFileError for another kind of features."""
        kind = said.get("feature_extractor_type", "WhisperFeatureExtractor")
        if kind != "WhisperFeatureExtractor":
            raise ModelFileError(f"'{path}': features by {kind} aren't known; those of WhisperFeatureExtractor are")
        if said.get("do_normalize") or said.get("dither"):
            raise ModelFileError(f"'{path}': do_normalize and dither aren't known")
        names = {
            "bands": "feature_size",
            "rate": "sampling_rate",
            "window": "n_fft",
            "hop": "hop_length",
            "seconds": "chunk_length",
        }
        given = {name: said[key] for name, key in names.items() if key in said}
        wrong = [names[name] for name, value in given.items() if type(value) is not int or not 0 < value <= 1 << 20]
        if wrong:
            raise ModelFileError(f"'{path}': {wrong[0]} is no number from 1 to {1 << 20}")
        return LogMel(**given)

    @property
    def frames(self) -> int:
        """Of a piece."""
        return self.seconds * self.rate // self.hop

    def __call__(self, samples: Samples) -> NDArray[np.float32]:
        """The features [1, bands, frames] of a piece of at most `seconds`."""
        whole = np.zeros(self.seconds * self.rate, np.float64)
        whole[: len(samples)] = samples
        padded = np.pad(whole, self.window // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.window)[:: self.hop][: self.frames]
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        spectrum = np.fft.rfft(frames * hann)
        power = spectrum.real**2 + spectrum.imag**2
        heard = np.log10(np.maximum(self._filters @ power.T, _FLOOR))
        heard = np.maximum(heard, heard.max() - _RANGE)
        features: NDArray[np.float32] = ((heard + 4.0) / 4.0).astype(np.float32)[None]
        return features


def _slaney(bands: int, bins: int, rate: int) -> NDArray[np.float64]:
    """Triangles [bands, bins] of the same area each, evenly spread on Slaney's mel scale (Auditory Toolbox, 1998): linear up to
    1 kHz, logarithmic above."""
    knee, width, ratio = 1000.0, 200.0 / 3, np.log(6.4) / 27

    def hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
        above: NDArray[np.float64] = knee * np.exp(ratio * (mel - knee / width))
        return np.where(mel < knee / width, mel * width, above)

    most = knee / width + np.log(max(rate / 2, knee) / knee) / ratio if rate / 2 > knee else rate / 2 / width
    edges = hertz(np.linspace(0.0, most, bands + 2))
    at = np.linspace(0.0, rate / 2, bins)
    rise = (at - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - at) / (edges[2:] - edges[1:-1])[:, None]
    triangles: NDArray[np.float64] = np.maximum(0.0, np.minimum(rise, fall)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return triangles
