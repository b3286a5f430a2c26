"""`dhlo opt`: runs passes over a module's text in the order of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dhlo.errors import CompileError
from dhlo.ir.context import context
from dhlo.pipeline import REWRITES, Pass, run_passes
from dhlo.texts import MOST_CHARACTERS, read_module

__all__ = ["module_text", "opt_file"]


def opt_file(
    source: Path,
    output: Path | None,
    passes: Sequence[str],
    print_after: Sequence[str],
    verify_only: bool,
    locations: bool,
) -> None:
    """Parses, verifies, runs `passes` by name, prints to `output` or standard output. "-" is standard input.

    Weights have no data here, so passes that compute with them leave them alone. Raises CompileError for text that
    doesn't parse or verify, and for names of unknown passes.
    """
    by_name = {p.name: p for p in REWRITES}
    unknown = [n for n in (*passes, *print_after) if n not in by_name and n != "all"]
    if unknown:
        raise CompileError(f"there is no pass '{unknown[0]}'; passes: {', '.join(by_name)}")
    with context():
        module = read_module(_text(source), str(source))
        if verify_only:
            return

        def after(p: Pass, m: Any) -> None:
            if p.name in print_after or "all" in print_after:
                print(f"// ----- after {p.name} -----\n{module_text(m, locations)}", file=sys.stderr)

        try:
            run_passes(module, {}, tuple(by_name[n] for n in passes), after)
        except RecursionError:
            raise CompileError(f"'{source}' chains more ops than the passes can follow") from None
        text = module_text(module, locations)
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n")


def module_text(module: Any, locations: bool) -> str:
    """A module as text, if wanted with the source line of every op."""
    return str(module.operation.get_asm(enable_debug_info=locations)).rstrip("\n")


def _text(source: Path) -> str:
    try:
        if str(source) == "-":
            return sys.stdin.read(MOST_CHARACTERS + 1)
        with source.open() as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise CompileError(f"'{source}' can't be read: {e}") from None
