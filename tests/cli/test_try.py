"""``maxslices try`` on scans of several kinds; the description of the loader."""

import shlex

import h5py
import numpy as np
import pytest
import yaml

from maxslices import Pipeline
from maxslices.cli.main import main
from maxslices.demo.phantom import flower_head
from maxslices.demo.scan_file import make_scan
from maxslices.io import parse_loader
from maxslices.pipeline.loader_text import LOADER_YAML, OTHER_FILES_YAML


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "flower.nxs"
    make_scan(path, flower_head(rows=8, columns=128), n_angles=91, shift=1.5)
    return path


def test_one_command_makes_a_picture_of_slices(flower, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["try", str(flower), "--device", "cpu"]) == 0
    out = tmp_path / "flower-try"
    assert (out / "slices.png").read_bytes().startswith(b"\x89PNG")
    with h5py.File(out / "result.h5") as file:
        assert file["entry/data/data"].shape == (3, 128, 128)
        assert file["entry/data/z"][0] == 10  # row 2, in micrometres
    printed = capsys.readouterr().out
    assert "look at flower-try/slices.png" in printed
    _, command = printed.strip().rsplit("maxslices ", 1)
    assert main([*command.split(), "--device", "cpu", "-q"]) == 0  # as it is printed
    with h5py.File(tmp_path / "flower-pipeline/result.h5") as file:
        assert file["entry/data/data"].shape == (8, 128, 128)
    assert main([*command.split(), "--device", "cpu", "-q"]) == 0
    assert (tmp_path / "flower-pipeline-2/report.json").exists()


def test_try_rejects_a_reconstruction(flower, tmp_path, capsys):
    assert main(["try", str(flower), str(tmp_path / "out"), "--device", "cpu", "-q"]) == 0
    volume = str(tmp_path / "out/result.h5")
    assert main(["info", volume]) == 0
    out = capsys.readouterr().out
    assert "volume        3 x 128 x 128 float32" in out
    assert "angles x rows" not in out
    assert main(["try", volume, str(tmp_path / "again"), "--device", "cpu"]) == 1
    assert "result.h5: is a reconstruction (axes z, y, x), not a scan" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_try_without_angles_and_flats_states_its_assumptions(tmp_path, capsys):
    path = tmp_path / "scan.npy"
    scan = np.random.default_rng(2).integers(500, 900, (40, 5, 64)).astype(np.uint16)
    np.save(path, scan)
    assert main(["try", str(path), str(tmp_path / "out"), "--device", "cpu"]) == 0
    err = capsys.readouterr().err
    assert "0 to 180 degrees are assumed" in err
    assert "no flats and darks" in err
    assert (tmp_path / "out/slices.png").exists()


@pytest.mark.parametrize("has_key", [True, False])
def test_try_guesses_an_unknown_layout_from_shapes_and_names(
    flower, tmp_path, monkeypatch, capsys, has_key
):
    monkeypatch.chdir(tmp_path)
    with h5py.File(flower) as scan, h5py.File("odd name.h5", "w") as file:
        detector = scan["entry1/tomo_entry/instrument/detector"]
        key = detector["image_key"][()]
        frames = scan["entry1/tomo_entry/data/data"][()]
        angles = scan["entry1/tomo_entry/data/rotation_angle"][()]
        if has_key:
            file["scan 42/camera/raw"], file["scan 42/camera/image_key"] = frames, key
            file["scan 42/stage/theta_deg"] = angles
            file["scan 42/sample/x_pixel_size"] = 6.5e-3
            file["scan 42/sample/x_pixel_size"].attrs["units"] = "mm"
        else:
            file["camera/raw"], file["stage/theta"] = frames[key == 0], angles[key == 0]
            file["camera/white_field"] = frames[key == 1]
            file["camera/dark_field"] = frames[key == 2]
    assert main(["try", "odd name.h5", "--device", "cpu"]) == 0
    err, printed = capsys.readouterr()[::-1]
    assert "by its shape and names: frames /" in err
    assert "no flats" not in err
    assert "no angles" not in err
    assert main(["try", str(flower), "known", "--device", "cpu", "-q"]) == 0
    with h5py.File("odd name-try/result.h5") as odd, h5py.File("known/result.h5") as usual:
        np.testing.assert_array_equal(odd["entry/data/data"], usual["entry/data/data"])
        size = odd["entry"].get("x_pixel_size")
        assert (None if size is None else size[()]) == (6.5 if has_key else None)
    command = shlex.split(printed.strip().rsplit("maxslices ", 1)[1])
    assert main([*command, "--device", "cpu", "-q"]) == 0


@pytest.mark.parametrize("n_stacks", [0, 2])
def test_try_lists_the_data_of_a_file_without_a_likely_scan(tmp_path, capsys, n_stacks):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(n_stacks):
            file[f"stack {number}"] = np.ones((9, 3, 16), np.uint16)
    assert main(["try", str(tmp_path / "x.h5"), "--device", "cpu"]) == 1
    assert "give data_path; " in capsys.readouterr().err


@pytest.fixture(scope="module")
def full_turn(tmp_path_factory):
    """A scan of a full turn whose axis lies left of the middle, after a flat and a dark."""
    path = tmp_path_factory.mktemp("turn") / "turn.nxs"
    rows, columns, angles = 7, 64, np.arange(0, 360, 4.0)
    position = np.arange(columns) - 26 - 12 * np.cos(np.deg2rad(angles))[:, None]
    shadow = np.sqrt(np.clip(8**2 - position**2, 0, None))
    counts = 9000 * np.exp(-0.02 * shadow[:, None] * np.linspace(0.5, 1.5, rows)[:, None]) + 100
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry1/tomo_entry")
        sides = np.full((2, rows, columns), 100), np.full((2, rows, columns), 9100)
        entry["data/data"] = np.concatenate([*sides, counts]).astype(np.uint16)
        entry["data/rotation_angle"] = [0, 0, 0, 0, *angles]
        entry["instrument/detector/image_key"] = [2, 2, 1, 1] + [0] * len(angles)
    return path


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--rows", "5:7"],
        ["--rows=0"],
        ["--block", "1", "--memory", "100MB"],
        ["--block", "max", "--estimator", "declared"],
    ],
)
def test_printed_command_repeats_the_result(full_turn, tmp_path, monkeypatch, capsys, options):
    monkeypatch.chdir(tmp_path)
    assert main(["try", str(full_turn), *options, "--device", "cpu"]) == 0
    printed, notes = capsys.readouterr()
    assert "a full turn: the axis is at column 26.0 of 64" in notes
    command = shlex.split(printed.splitlines()[-1])
    assert command[:4] == ["maxslices", "run", str(full_turn), "turn-try/pipeline.yaml"]
    limits = [word for word in options if "rows" not in word and word != "5:7"]
    assert set(limits) <= set(command)
    assert main([*command[1:], "-q"]) == 0
    with (
        h5py.File("turn-try/result.h5") as tried,
        h5py.File("turn-pipeline/result.h5") as run,
    ):
        rows = tried["entry/data/z"][()].astype(int)
        assert run["entry/data/data"].shape[0] == 7
        np.testing.assert_array_equal(tried["entry/data/data"], run["entry/data/data"][rows])


def test_a_try_that_is_stopped_resumes_with_its_rows(flower, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("maxslices.runner.execute.correct_records", stop, raising=False)
        patch.setattr("maxslices.api.carry_out.correct_records", stop)
        assert main(["try", str(flower), str(out), "--rows", "5:7", "--device", "cpu"]) == 130
    hint = capsys.readouterr().err.partition("`maxslices ")[2].partition("`")[0]
    assert main([*shlex.split(hint), "-q"]) == 0
    with h5py.File(out / "result.h5") as file:
        assert file["entry/data/z"][()].tolist() == [25, 30]  # rows 5 and 6, in micrometres


def test_every_line_of_the_loaders_description_can_be_written(capsys):
    for text in (LOADER_YAML, OTHER_FILES_YAML):
        (step,) = yaml.safe_load(text)
        _, faults = parse_loader(step["parameters"])
        assert faults == []
    assert main(["methods", "standard_tomo"]) == 0
    printed = capsys.readouterr().out
    assert "rotation_angles: {file: angles.nxs" in printed
    assert "{{" not in printed
    assert all(len(line) <= 100 for line in printed.splitlines())


@pytest.mark.filterwarnings("ignore:minus_log takes transmission")
def test_pipeline_as_run_contains_the_chosen_part(flower, tmp_path):
    out = tmp_path / "out"
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text("- method: dark_flat_field_correction\n")
    options = ["--rows", "2:5", "--angles", "::3", "--device", "cpu", "-q"]
    assert main(["run", str(flower), str(pipeline), str(out), *options]) == 0
    again = Pipeline.from_file(out / "pipeline_as_run.yaml")
    assert again.loader.preview.detector_y == (2, 5)
    assert again.loader.preview.angle_step == 3


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_resume_and_overwrite_need_a_named_folder(flower, tmp_path, capsys, option):
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text("- method: dark_flat_field_correction\n")
    assert main(["run", str(flower), str(pipeline), option]) == 2
    assert "name it as OUT" in capsys.readouterr().err
