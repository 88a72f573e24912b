"""Sweeps: each picture is what a run with that value makes of the middle row."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tifffile
from PIL import Image

from maxslices import ArrayScan, Pipeline, Registry, plan, run
from maxslices.errors import DoesNotFitError, MaxslicesError, StoreError, UsageError
from maxslices.io import Source
from maxslices.pipeline.sweep import cut_at_sweep, rows_of_sweep, with_sweep
from maxslices.runner.sweep_pictures import ContactSheet, sharpness
from tests.planner.fakes import fakes

ANGLES, COLUMNS = 19, 64
FIND = {"method": "find_center_vo", "id": "c", "side_outputs": {"cor": "cor"}}
NORMALIZE = ["dark_flat_field_correction", "minus_log"]


def source(rows=24, seed=1):
    rng = np.random.default_rng(seed)
    shape = (ANGLES, rows, COLUMNS)
    return ArrayScan(
        rng.integers(1000, 3000, shape, np.uint16),
        flats=rng.integers(3000, 4000, (5, *shape[1:]), np.uint16),
        darks=rng.integers(0, 9, (3, *shape[1:]), np.uint16),
        angles=np.linspace(0, np.pi, ANGLES, dtype=np.float32),
    )


def step(method, **parameters):
    return {"method": method, "parameters": parameters}


AXIS = "${{c.side_outputs.cor}}"
SWEPT = {
    "centre": ([*NORMALIZE, "fbp"], {"fbp.center": [28.5, 31.0, 33.25]}),
    "first step": (["dark_flat_field_correction"], {"flats_multiplier": [1.0, 1.5]}),
    "halo after it": (
        [*NORMALIZE, "fbp", step("total_variation_rof", iterations=3)],
        {"fbp.center": [28.5, 31.0]},
    ),
    "halo of each value": (
        [*NORMALIZE, "fbp", "total_variation_rof"],
        {"total_variation_rof.iterations": [1, 2, 5]},
    ),
    "halo before it": (
        ["median_filter", *NORMALIZE, step("remove_outlier", dif=500.0), "fbp"],
        {"fbp.center": [28.5, 31.0]},
    ),
    "axis found before it": (
        [*NORMALIZE, FIND, step("fbp", center=AXIS)],
        {"fbp.filter_type": ["ram-lak", "hann"]},
    ),
    "axis found in other rows": (
        [*NORMALIZE, {**FIND, "parameters": {"ind": 2}}, step("fbp", center=AXIS)],
        {"fbp.filter_type": ["ram-lak", "hann"]},
    ),
    "axis found for each value": (
        [*NORMALIZE, "remove_stripe_based_sorting", FIND, step("fbp", center=AXIS)],
        {"remove_stripe_based_sorting.size": [3, 11]},
    ),
    "phase filter": (
        ["dark_flat_field_correction", step("paganin_filter", energy=1000.0), "fbp"],
        {"paganin_filter.ratio_delta_beta": [1.0, 2.0]},
    ),
    "halo of the swept step": (
        [*NORMALIZE, "total_variation_rof", "remove_stripe_based_sorting", "fbp"],
        {"total_variation_rof.iterations": [1, 3, 2]},
    ),
    "other angles before it": (
        [*NORMALIZE, step("sino_360_to_180", overlap=10), "fbp"],
        {"fbp.filter_type": ["ram-lak", "hann"]},
    ),
    "names": ([*NORMALIZE, "fbp"], {"fbp.filter_type": ["ram-lak", "cosine"]}),
    "whole numbers": ([*NORMALIZE, "remove_stripe_based_sorting"],
                      {"remove_stripe_based_sorting.size": range(3, 9, 2)}),
}  # fmt: skip


def case(name):
    steps, sweep = SWEPT[name]
    ((key, values),) = sweep.items()
    return steps, f"dark_flat_field_correction.{key}" if "." not in key else key, list(values)


def with_value(steps, name, value):
    method, _, parameter = name.partition(".")
    full_steps = [{"method": each} if isinstance(each, str) else each for each in steps]
    return [
        {**each, "parameters": {**each.get("parameters", {}), parameter: value}}
        if each["method"] == method
        else each
        for each in full_steps
    ]


@pytest.mark.parametrize("rows", [1, 6, 23, 24])
@pytest.mark.parametrize("name", SWEPT)
def test_each_picture_is_the_middle_row_of_a_run_with_that_value(name, rows):
    if name == "axis found in other rows" and rows == 1:
        pytest.skip("there is no other row")
    steps, key, values = case(name)
    scan = source(rows)
    report = run(scan, steps, device="cpu", memory="200MB", sweep={key: values})
    assert report.values == tuple(values)
    for value, picture in zip(values, report.result, strict=True):
        whole = run(scan, with_value(steps, key, value), device="cpu", memory="200MB")
        expected = whole.result[:, whole.result.shape[1] // 2]
        assert np.array_equal(picture, expected), value


class Own(Source):
    """A scan that is read by a program of the user's."""

    _scan = source()
    name, spec, angles = "own", _scan.spec, _scan.angles
    flats, darks, read, read_side = _scan.flats, _scan.darks, _scan.read, _scan.read_side

    def close(self):
        """Keep the arrays."""


def test_the_pictures_of_a_source_of_ones_own_are_those_of_its_data():
    steps, key, values = case("halo of the swept step")
    options = {"device": "cpu", "memory": "200MB", "sweep": {key: values}}
    assert np.array_equal(
        run(Own(), steps, **options).result, run(source(), steps, **options).result
    )


@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_a_phase_filter_is_given_as_many_rows_as_it_reaches(ratio):
    rows = 301
    rng = np.random.default_rng(3)
    data = rng.random((2, rows, COLUMNS), np.float32) + 0.5
    steps = [step("paganin_filter", ratio_delta_beta=ratio)]
    sweep = {"paganin_filter.ratio_delta_beta": [ratio]}
    report = run(data, steps, device="cpu", memory="200MB", sweep=sweep)
    cut = cut_at_sweep(with_sweep(Pipeline.from_steps(steps), sweep))
    assert rows_of_sweep(cut, rows).start > 0
    whole = run(data, steps, device="cpu", memory="200MB").result[:, rows // 2]
    assert np.sqrt(np.mean((report.result[0] - whole) ** 2)) <= 1e-5


def test_steps_before_the_swept_one_run_once():
    calls = []
    registry = Registry()

    def before(data):
        calls.append("before")
        return data * 2

    def swept(data, strength: int = 1):
        calls.append(strength)
        return data * strength

    for function in (before, swept):
        registry.register(function, pattern="sinogram", calc_max_slices=fakes["negate"].estimator)
    pipeline = Pipeline.from_steps(["before", "swept"], registry)
    data = np.ones((4, 6, 8), np.float32)
    report = run(data, pipeline, device="cpu", sweep={"swept.strength": [1, 2, 3]})
    assert calls == ["before", 1, 2, 3]
    assert report.result[:, 0, 0].tolist() == [2, 4, 6]


def test_a_folder_holds_a_stack_and_a_contact_sheet(tmp_path):
    steps, key, values = case("centre")
    report = run(source(), steps, tmp_path / "out", device="cpu", sweep={key: values})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "sweep.tif", "sweep.png",
        "report.json", "report.html", "pipeline_as_run.yaml", "run.log",
    }  # fmt: skip
    page = (tmp_path / "out" / "report.html").read_text()
    assert f": {key} = {report.suggested:g}. A suggestion" in page
    in_memory = run(source(), steps, device="cpu", sweep={key: values})
    with tifffile.TiffFile(tmp_path / "out" / "sweep.tif") as file:
        assert np.array_equal(file.asarray(), in_memory.result)
        assert [page.description for page in file.pages] == [f"{key} = {v:g}" for v in values]
    with Image.open(tmp_path / "out" / "sweep.png") as sheet:
        assert sheet.mode == "RGB"
    written = json.loads((tmp_path / "out" / "report.json").read_text())["sweep"]
    assert written["values"] == values
    assert written["suggested"] == report.suggested
    assert report.sharpness == tuple(sharpness(each) for each in in_memory.result)


@pytest.mark.parametrize("side", [100, 150, 900])
def test_a_sheet_shows_each_picture_as_it_was_when_it_was_added(tmp_path, side):
    sheet = ContactSheet(2, (side, side), "two")
    picture = np.zeros((side, side), np.float32)
    sheet.add(picture, "dark")
    picture[...] = 1
    sheet.add(picture, "bright")
    sheet.save(tmp_path / "sheet.png", None)
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("L"))
    middle = pixels[pixels.shape[0] // 2]
    assert middle.min() == 0
    assert (middle[len(middle) // 2 + 20 :] == 255).sum() >= 50


def test_a_sweep_is_replaced_when_it_is_allowed_to_be(tmp_path):
    steps, key, values = case("centre")
    run(source(), steps, tmp_path, device="cpu", sweep={key: values})
    with pytest.raises(StoreError, match="already contains a run"):
        run(source(), steps, tmp_path, device="cpu", sweep={key: values})
    run(source(), steps, tmp_path, device="cpu", sweep={key: values[:2]}, overwrite=True)
    assert tifffile.imread(tmp_path / "sweep.tif").shape[0] == 2
    run(source(), steps, tmp_path, device="cpu", overwrite=True)
    assert not (tmp_path / "sweep.tif").exists()
    assert (tmp_path / "result.h5").exists()


def test_a_sweep_that_fails_leaves_nothing(tmp_path):
    registry = Registry()

    def picky(data, strength: int = 1):
        if strength == 3:
            raise ValueError("no")
        return data * strength

    registry.register(picky, pattern="sinogram", calc_max_slices=fakes["negate"].estimator)
    data = np.ones((4, 6, 8), np.float32)
    pipeline = Pipeline.from_steps(["picky"], registry)
    with pytest.raises(MaxslicesError, match="ValueError: no"):
        run(data, pipeline, tmp_path / "out", device="cpu", sweep={"picky.strength": [1, 2, 3]})
    assert not (tmp_path / "out").exists()


def test_the_pipeline_as_run_sweeps_again(tmp_path):
    steps, key, values = case("centre")
    run(source(), steps, tmp_path / "one", device="cpu", sweep={key: values})
    written = tmp_path / "one" / "pipeline_as_run.yaml"
    run(source(), written, tmp_path / "two", device="cpu")
    first, second = (tifffile.imread(tmp_path / each / "sweep.tif") for each in ("one", "two"))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("n_values", [5, 50])
def test_memory_stays_within_the_plans(tmp_path, n_values):
    sweep = {"fbp.center": np.linspace(28, 34, n_values).tolist()}
    steps, options = [*NORMALIZE, "fbp"], {"device": "cpu", "memory": "120MB", "sweep": sweep}
    report = run(source(), steps, tmp_path / "out", **options)
    measured = [each.measured_bytes for each in report.sections]
    estimated = [each.estimated_bytes for each in report.plan.sections]
    assert all(m <= e for m, e in zip(measured, estimated, strict=True))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1:1.3:0.1", [1.0, 1.1, 1.2]),
        ("60:61:0.3", [60.0, 60.3, 60.6, 60.9]),
        ("3:-3:-2", [3, 1, -1]),
        ("0:1:3", [0]),
        ("1000000.1:1000000.4:0.1", [1000000.1, 1000000.2, 1000000.3]),
    ],
)
def test_the_stop_of_a_range_is_excluded(text, values):
    pipeline = with_sweep(Pipeline.from_steps(["fbp"]), f"fbp.center={text}")
    assert pipeline.steps[0].parameters["center"].values == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("n_values", [500, 2000])
def test_too_little_memory_for_the_slices_is_an_error(n_values):
    sweep = {"fbp.center": np.linspace(28, 34, n_values).tolist()}
    with pytest.raises(DoesNotFitError, match=r"the sweep (also )?holds .* data and slices"):
        run(source(), [*NORMALIZE, "fbp"], device="cpu", memory="16MB", sweep=sweep)


def test_the_plan_of_a_run_says_which_rows_and_why():
    options = {"device": "cpu", "memory": "200MB", "sweep": "fbp.center=30:34:0.5"}
    notes = run(source(100), [*NORMALIZE, "fbp"], **options).plan.notes
    assert "a sweep of fbp.center over 8 values: 30, 30.5, 31, 31.5, ..., 33.5" in notes[0]
    assert "4 rows in the middle, 48 to 51, are read: the usual minimum" in notes[1]
    steps = [*NORMALIZE, "fbp", step("total_variation_rof", iterations=7)]
    notes = run(source(100), steps, **options).plan.notes
    assert "16 rows in the middle, 42 to 57, are read: 7 on either side for to" in notes[1]


@pytest.mark.parametrize("n_rows", range(1, 30))
def test_rows_lie_evenly_around_the_middle(n_rows):
    pipeline = Pipeline.from_steps([*NORMALIZE, "fbp"])
    cut = cut_at_sweep(with_sweep(pipeline, "fbp.center=1:3:1"))
    rows = rows_of_sweep(cut, n_rows)
    assert rows.start == n_rows - rows.stop
    assert rows.n_rows == min(n_rows, 5 if n_rows % 2 else 4)  # as httomo takes
    assert rows.middle - rows.start == rows.n_rows // 2


def test_statistics_and_images_are_left_out():
    steps = [*NORMALIZE, "fbp", step("rescale_to_int", glob_stats=[0, 1, 0.5, 9])]
    report = run(source(), steps, device="cpu", memory="200MB", sweep="fbp.center=30:33:1")
    assert report.result.dtype == np.float32
    assert "left out in a sweep: rescale_to_int" in report.plan.notes


WRONG = {
    "fbp.center": "is not a sweep: write STEP.PARAMETER=",
    "fbp.center=": "is not a sweep",
    "center=1:2:1": "is not a parameter of a step",
    "fbp.center=1:2": "is not a sweep",
    "fbp.center=1:2:3:4": "is not a sweep",
    "fbp.center=1:2:0": "step of a range must not be 0",
    "fbp.center=a:2:1": "start of a range must be a number",
    "fbp.center=[]": "a sweep needs at least one value",
    "fbp.center=[1, x]": "parameter 'center' must be",
    "fbp.center=[1,": "not valid YAML",
    "fbp.centre=1:2:1": "fbp has no parameter 'centre'; did you mean center",
    "fpb.center=1:2:1": "the pipeline has no step 'fpb'; did you mean fbp",
    "fbp.angles=1:2:1": "angles is supplied during the run",
    "find_center_vo.smin=1:3:1": "a sweep needs a method that makes data",
    "minus_log.x=1:3:1": "2 steps are called minus_log: give one of them an id",
}


@pytest.mark.parametrize("sweep", WRONG)
def test_invalid_sweep_is_an_error(sweep):
    steps = ["dark_flat_field_correction", "minus_log", "minus_log", FIND, "fbp"]
    with pytest.raises(MaxslicesError) as caught:
        run(source(), steps, device="cpu", sweep=sweep)
    assert WRONG[sweep] in str(caught.value)


def test_values_of_different_shapes_are_refused():
    with pytest.raises(MaxslicesError, match="the slices of a sweep must have one shape"):
        run(source(), [*NORMALIZE, "fbp"], device="cpu", sweep={"fbp.recon_size": [32, 64]})


@pytest.mark.parametrize(
    "options",
    [
        {"save_all": True},
        {"out": np.zeros((3, 3, 3), np.float32)},
        {"picture": True, "out": "x"},
        {"format": "tiff:8", "out": "x"},
        {"workers": 2, "out": "x"},
        {"engine": "dask", "out": "x"},
    ],
)
def test_options_that_exclude_a_sweep_are_an_error(options):
    with pytest.raises(UsageError):
        run(source(), [*NORMALIZE, "fbp"], device="cpu", sweep="fbp.center=1:3:1", **options)


class TestSharpness:
    picture = np.zeros((64, 64), np.float32)
    picture[20:40, 24:44] = 1.0
    picture[28:32, 30:34] = 2.0

    def test_blur_and_noise_make_it_smaller(self):
        blurred = sum(np.roll(self.picture, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1))
        noise = np.random.default_rng(0).normal(0, 0.1, self.picture.shape)
        assert sharpness(blurred) < sharpness(self.picture)
        assert sharpness(self.picture + noise) < sharpness(self.picture)
        assert sharpness(8 * self.picture + 4) == pytest.approx(sharpness(self.picture))

    @pytest.mark.parametrize("value", [0, np.nan, np.inf])
    def test_an_even_picture_has_none(self, value):
        assert sharpness(np.full((9, 9), value)) == 0
        assert sharpness(np.full((2, 9), value)) == 0


def test_a_pipeline_with_a_sweep_is_planned_with_its_first_value_on_the_rows_that_are_read():
    pipeline = with_sweep(Pipeline.from_steps([*NORMALIZE, "fbp"]), "fbp.center=30:32:1")
    swept_plan = plan(source(100), pipeline, device="cpu")
    assert "4 rows in the middle, 48 to 51, are read: the usual minimum" in swept_plan.notes[1]
    assert swept_plan.sections[-1].n_slices == 4
