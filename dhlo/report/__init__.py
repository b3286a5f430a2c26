"""The report of a model: one HTML page that needs neither network nor server."""

from dhlo.report.page import read_profile, render_report

__all__ = ["read_profile", "render_report"]
