"""`dhlo compile --dump-dir`: the module after each pass, and how to run alone what failed."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from dhlo.container import write_bytes
from dhlo.errors import CompileError
from dhlo.pipeline import REWRITES

__all__ = ["Dump"]


class Dump:
    """Writes modules to a folder, numbered in their order: what `Options.dump` is called as. Raises OSError.

    Files of an earlier dump in the folder are removed first. Raises CompileError where the folder isn't one.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise CompileError(f"'{folder}' is not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if re.fullmatch(r"\d{3}-.*\.mlir|reproduce\.sh", path.name):
                path.unlink()
        self._folder, self._last, self._count = folder, "", 0

    def __call__(self, name: str, text: str) -> None:
        self._last = f"{self._count:03}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.mlir"
        self._count += 1
        write_bytes(self._folder / self._last, (text + "\n").encode())

    def failed(self, error: Exception) -> Path:
        """Writes `reproduce.sh`, which runs the failed pass on what stood before it, if it was a pass, and all of the command."""
        reasons = [f"# {line}" for line in str(error).splitlines()]
        found = [m[1] for note in getattr(error, "__notes__", ()) if (m := re.fullmatch("in pass (.*)", note))]
        alone = []
        if found and self._last and found[0] in {p.name for p in REWRITES}:
            alone = ["# the pass alone; constants have no data here, so passes that compute with them may do less:"]
            alone += ['cd "$(dirname "$0")"', f"DHLO_VERIFY_PASSES=1 dhlo opt {shlex.quote(self._last)} --{found[0]} -o /dev/null"]
        elif found and self._last:
            alone = [f"# what stood before pass {found[0]}: {self._last}"]
        whole = f"all of it, in {Path.cwd()}:\n{shlex.join(['dhlo', *sys.argv[1:]])}".replace("\n", "\n# ")
        path = self._folder / "reproduce.sh"
        write_bytes(path, "\n".join(["#!/bin/sh", *reasons, *alone, f"# {whole}", ""]).encode())
        return path
