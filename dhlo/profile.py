"""Where the time of calls goes: launches by kernel and line of the model's source."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from dhlo import _runtime
from dhlo.errors import translate

__all__ = ["HEAD", "Profile", "ProfileRow", "cells", "profile_rows"]

HEAD = ("kernel", "source", "launches", "us in all", "us each", "share")


@dataclass(frozen=True)
class ProfileRow:
    """Launches of one kernel for one line of the model's source ("" where that isn't known): how many, and seconds in all."""

    kernel: str
    source: str
    launches: int
    seconds: float


def profile_rows(session: _runtime.Session) -> list[ProfileRow]:
    """What a session has measured since profiling was switched on or reset; the most expensive first."""
    lines = _source_of_sites(session.model)
    total: dict[tuple[str, str], tuple[int, int]] = {}
    for site, (kernel, count, nanoseconds) in enumerate(session.profile):
        if count:
            key = kernel, lines.get(site, "")
            seen = total.get(key, (0, 0))
            total[key] = seen[0] + count, seen[1] + nanoseconds
    rows = [ProfileRow(kernel, line, count, ns / 1e9) for (kernel, line), (count, ns) in total.items()]
    return sorted(rows, key=lambda r: -r.seconds)


def _source_of_sites(model: _runtime.Model) -> dict[int, str]:
    """By launch site: the line that its group is best known by, or else the module."""
    meta = json.loads(model.metadata)
    spans: list[list[int]] = next((level["groups"] for level in meta["levels"] if level["name"] == model.level), [])
    return {
        site: meta["sources"][group["source"]] if group["source"] >= 0 else group["module"]
        for group, (first, end) in zip(meta["groups"], spans, strict=False)
        for site in range(first, end)
    }


def cells(rows: Sequence[ProfileRow]) -> Iterable[tuple[str, ...]]:
    """The rows as texts, a column for each name of `HEAD`."""
    everything = sum(r.seconds for r in rows) or 1.0
    for r in rows:
        us = 1e6 * r.seconds
        yield r.kernel, r.source, str(r.launches), f"{us:.1f}", f"{us / r.launches:.1f}", f"{r.seconds / everything:.1%}"


class Profile:
    """The times of a session's calls inside of `with`; printed, a table. `rows` are there from its end on.

    with session.profile() as profile:
        session(x)
    print(profile)
    """

    def __init__(self, session: _runtime.Session) -> None:
        self._session = session
        self.rows: list[ProfileRow] = []

    def __enter__(self) -> Self:
        self._switch(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.rows = profile_rows(self._session)
        except RuntimeError as e:
            raise translate(e) from None
        self._switch(False)

    def _switch(self, on: bool) -> None:
        """Raises SessionError while a call is running."""
        try:
            self._session.set_profile(on, reset=True)
        except RuntimeError as e:
            raise translate(e) from None

    def __str__(self) -> str:
        table = [HEAD, *cells(self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        padded = [[x.ljust(w) for x, w in zip(row[:2], widths[:2], strict=True)] for row in table]
        padded = [p + [x.rjust(w) for x, w in zip(row[2:], widths[2:], strict=True)] for p, row in zip(padded, table, strict=True)]
        return "\n".join("  ".join(row).rstrip() for row in padded)

    def __repr__(self) -> str:
        return f"<dhlo.Profile: {sum(r.launches for r in self.rows)} launches, {1e6 * sum(r.seconds for r in self.rows):.1f} us>"

    def _repr_html_(self) -> str:
        def row(tag: str, texts: Sequence[str]) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(x)}</{tag}>' for x in texts)}</tr>"

        return f"<table>{row('th', HEAD)}{''.join(row('td', x) for x in cells(self.rows))}</table>"
