"""Which versions of PyTorch dhlo works with, and the refusal of others."""

from __future__ import annotations

import re

from dhlo.errors import TorchVersionError

__all__ = ["NEWEST", "OLDEST", "require_supported"]

OLDEST = (2, 12)
NEWEST = (2, 15)  # pyproject.toml says the same to pip


def require_supported(version: str) -> tuple[int, int]:
    """(major, minor) of a version of PyTorch such as "2.13.0+cpu".

    Raises TorchVersionError, naming what is supported, if dhlo doesn't work with it: the compiler rests on parts of torch.export
    that change between minor versions.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= number <= NEWEST:
        low, high = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
        raise TorchVersionError(f"dhlo supports torch {low} to {high}, found {version}")
    return number
