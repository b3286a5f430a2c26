"""Output of the commands: tables on the terminal, in full width where the output goes elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["cache_summary", "console", "megabytes", "print_table", "quantised_summary", "rounded_summary"]

_WIDE = 200


def console() -> Console:
    """A console on standard output, which takes texts as they are: names of files may look like markup."""
    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else _WIDE, markup=False, highlight=False, emoji=False, soft_wrap=not terminal)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Prints a table; the columns named in `right` are numbers."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in right, overflow="fold")
    for row in rows:
        table.add_row(*(str(x) for x in row))
    out = console()
    out.print(table)
    out.print()


def quantised_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """What became of the constants of products, in a line."""
    done = [r for r in rows if r["format"] != "f32"]
    worst = max(done, key=lambda r: r["error"], default=None)
    sizes = [megabytes(sum(r[k] for r in rows)) for k in ("before", "after")]
    error = f", relative error at most {worst['error']:.2g} ({worst['name']})" if worst else ""
    return f"{len(done)} of {len(rows)} constants of products quantised: {sizes[1]} for {sizes[0]}{error}"


def rounded_summary(products: int) -> str:
    """What is done to the rows of products of quantised weights, in a line."""
    return f"products that multiply quantised weights with int8: {products}"


def cache_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """What became of the tensors that a session keeps, in a line."""
    done = [r for r in rows if r["format"]]
    sizes = [megabytes(sum(r[k] for r in done)) for k in ("before", "after")]
    return f"{len(done)} of {len(rows)} states stored as {done[0]['format'] if done else ''}: {sizes[1]} for {sizes[0]}"


def megabytes(nbytes: int) -> str:
    """A size for people, in units of 1024."""
    return f"{nbytes} B" if nbytes < 1024 else f"{nbytes / 1024:.1f} KB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.1f} MB"
