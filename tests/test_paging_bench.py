"""The benchmark of steps over pools of blocks, at tiny sizes."""

import re

import pytest

from benchmarks import paging


@pytest.mark.parametrize(
    "table", ["blocks", "forms", *(pytest.param(x, marks=pytest.mark.slow) for x in ("ragged", "chunks", "shared"))]
)
def test_tables(table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["paging", table, "--tiny", "--budget", "0"])
    monkeypatch.setenv("DHLO_NUM_THREADS", "1")
    paging.main()
    _, line, *rows = capsys.readouterr().out.splitlines()
    assert rows and set(line) <= set("|- ")
    for row in rows:
        times = re.findall(r"\| (\d+\.\d\d) (?=\|)", row)
        assert times and all(float(t) >= 0 for t in times), row
