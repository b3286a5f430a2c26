"""Engines under requests of all kinds, for long."""

import pytest

from benchmarks.serving.soak import soak


@pytest.mark.slow
def test_soak() -> None:
    report = soak(2000, seed=1)
    assert report.compared > 50 and report.counts["preemptions"] > 0 and report.counts["folder hits"] > 0
    assert report.counts["store hits"] > 0 and report.counts["store failures"] > 0
    assert {"length", "cancelled", "deadline"} <= report.finished.keys()
