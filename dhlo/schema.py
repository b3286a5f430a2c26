"""Checks that JSON from a file has the structure that its reader takes for granted."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["check", "read_json"]


def read_json(data: bytes, schema: Any) -> Any:
    """The JSON value of a text, if it has the structure. Raises ValueError, which names the place.

    A schema is a type (bool isn't int), a tuple of alternatives, `[item]` for a list, `{str: value}` for an object with any
    keys, or an object of the keys that there must be (others may be there too).
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check(value, schema)
    return value


def check(value: Any, schema: Any) -> None:
    """Raises ValueError, which names the place, unless a JSON value has the structure of a schema: see `read_json`."""
    _check(value, schema, "")


def _check(value: Any, schema: Any, place: str) -> None:
    if isinstance(schema, tuple):
        if not any(_fits(value, s, place) for s in schema):
            raise ValueError(f"{place or 'the whole'} is none of the types that it may be")
    elif isinstance(schema, type):
        if schema is int and type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{place or 'the whole'} is no number of 64 bits")
        if type(value) is not schema:
            raise ValueError(f"{place or 'the whole'} is {type(value).__name__}, expected {schema.__name__}")
    elif isinstance(schema, list):
        _check(value, list, place)
        for n, item in enumerate(value):
            _check(item, schema[0], f"{place}[{n}]")
    else:
        _check(value, dict, place)
        if str in schema:
            for key, item in value.items():
                _check(item, schema[str], f"{place}.{key}")
            return
        for key, part in schema.items():
            if key not in value:
                raise ValueError(f"{place}.{key} is missing")
            _check(value[key], part, f"{place}.{key}")


def _fits(value: Any, schema: Any, place: str) -> bool:
    try:
        _check(value, schema, place)
    except ValueError:
        return False
    return True
