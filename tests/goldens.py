"""Texts that tests compare with files: `pytest --update-goldens` writes the files instead."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

__all__ = ["Golden"]


class Golden:
    """Compares a text with a file, or writes the file."""

    def __init__(self, update: bool) -> None:
        self.update = update

    def __call__(self, path: Path, text: str) -> None:
        """Fails with a diff where the file holds another text than `text` (plus a newline)."""
        text = text.rstrip("\n") + "\n"
        if self.update:
            path.write_text(text)
            return
        old = path.read_text() if path.exists() else ""
        if text != old:
            diff = "".join(difflib.unified_diff(old.splitlines(True), text.splitlines(True), str(path), "now"))
            pytest.fail(f"{path.name} is not what comes out now (pytest --update-goldens takes it over):\n{diff}")
