"""A sweep whose values are spread over workers: the pictures of a sweep in one process."""

from __future__ import annotations

import json

import numpy as np
import pytest

from maxslices import Pipeline, run
from maxslices.errors import MethodError
from tests.runner.test_resume import of
from tests.workers.faulty import faulty

PICTURES = "sweep.tif", "sweep.png"


def pictures(folder):
    return [(folder / name).read_bytes() for name in PICTURES]


@pytest.mark.parametrize(
    ("steps", "copies"), [(["to_float", "work"], range(1, 24)), (["work"], [1, 3])]
)
def test_pictures_are_those_of_one_process(tmp_path, scan, client, steps, copies):
    swept = {"work.copies": copies}
    shared = run(scan, of(steps), tmp_path / "shared", engine=client, sweep=swept)
    alone = run(scan, of(steps), tmp_path / "alone", device="cpu", sweep=swept)
    assert pictures(tmp_path / "shared") == pictures(tmp_path / "alone")
    assert shared.sharpness == alone.sharpness
    assert shared.values == alone.values
    assert [each.methods for each in shared.sections] == [each.methods for each in alone.sections]
    assert (tmp_path / "shared" / "report.html").exists()
    written = json.loads((tmp_path / "shared" / "report.json").read_text())
    assert written["sweep"]["values"] == list(shared.values)
    left = [path.name for path in (tmp_path / "shared").iterdir() if path.name.startswith(".")]
    assert left == []


def test_a_value_that_fails_is_named(tmp_path, scan, client):
    folder = tmp_path / "due"
    folder.mkdir()
    for number in range(10):
        (folder / f"due-{number}").touch()
    step = {"method": "failing", "parameters": {"folder": str(folder), "at": 0}}
    with pytest.raises(
        MethodError, match=r"values? \d+.* failed 3 times, on tcp://.*table is away"
    ):
        run(
            scan,
            Pipeline.from_steps([step], faulty),
            tmp_path / "out",
            engine=client,
            sweep={"failing.at": [0, 0]},
        )
    assert not (tmp_path / "out").exists()


def test_side_results_are_those_of_all_values(tmp_path, client):
    scan = tmp_path / "scan.npy"
    angles, rows, columns = 20, 9, 32
    np.save(scan, np.random.default_rng(2).random((angles, rows, columns), np.float32))
    steps = [
        "remove_stripe_based_sorting",
        {"method": "find_center_vo", "id": "c", "side_outputs": {"cor": "cor"}},
    ]
    swept = {"remove_stripe_based_sorting.size": [3, 5, 7, 11]}
    shared = run(scan, steps, tmp_path / "shared", engine=client, sweep=swept)
    alone = run(scan, steps, tmp_path / "alone", device="cpu", sweep=swept)
    assert shared.side_results == alone.side_results
