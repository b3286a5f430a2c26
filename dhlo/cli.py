"""The command line: dhlo compile, plan, inspect, opt, run, bench, serve, generate, update-weights, weights, keygen, sign, verify,
flags."""

from __future__ import annotations

from dhlo.command_line import compile, files, run, serve  # noqa: F401
from dhlo.command_line.app import app

__all__ = ["app"]
