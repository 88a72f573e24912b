"""The benchmark of the runner works: each part runs at a tiny size."""

from __future__ import annotations

import importlib

import pytest

from .goals.__main__ import PARTS
from .goals.rows import table


@pytest.mark.parametrize("name", PARTS)
def test_every_part_runs_at_a_tiny_size(name, tmp_path):
    part = importlib.import_module(f"tests.benchmarks.goals.part_{name}")
    rows = list(part.rows(True, tmp_path))
    assert rows
    # the result must be right at any speed
    wrong = [row for row in rows if row.better == "more" and row.unit == "" and not row.passed]
    assert wrong == []
    n_judged = sum(row.passed is not None for row in rows)
    assert table(rows).endswith(f"of {n_judged} targets met")
