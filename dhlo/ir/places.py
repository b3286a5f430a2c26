"""Where in the user's model an op comes from, read from its location."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Place", "place_of"]


@dataclass(frozen=True)
class Place:
    """`file` and `line` of the user's source, and the path of the module that ran; "" and 0 where they aren't known."""

    file: str = ""
    line: int = 0
    module: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else self.module


def place_of(op: Any) -> Place:
    """The place of an op that `dhlo.frontend` imported, or of one that a pass made of such; as `frontend.locations` writes it."""
    names, place = list[str](), op.location
    while True:
        match type(place).__name__:
            case "NameLoc":
                names.append(place.name_str)
                place = place.child_loc
            case "FusedLoc":
                place = place.locations[0]
            case "FileLineColLoc":
                return Place(place.filename, place.start_line, names[1] if len(names) > 1 else "")
            case _:
                return Place("", 0, names[1] if len(names) > 1 else "")
