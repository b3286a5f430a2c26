"""The benchmark of steps over pools of blocks, at tiny sizes."""

import re

import pytest

from benchmarks import paging


@pytest.mark.parametrize(
    "table", ["blocks", "forms", *(pytest.param(x, marks=pytest.mark.slow) for x in ("ragged", "chunks", "shared"))]
)
def test_tables(table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["paging", table, "--tiny", "--budget", "0", "--threads", "1"])
    monkeypatch.setenv("DHLO_NUM_THREADS", "1")  # as it was, afterwards
    paging.main()
    titles, _, *rows = (line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines())
    assert rows and len(titles) > 1
    for _, *figures in rows:
        assert len(figures) == len(titles) - 1 and all(re.fullmatch(r" \d+\.\d+ ", x) for x in figures), figures
