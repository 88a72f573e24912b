"""What strangers type: names of what cannot be read or written, and a program not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest


def without_rights(*arguments):
    """Run the command line as one whom permissions bind, which root is not."""
    command = [sys.executable, "-m", "maxslices", *map(str, arguments)]
    if os.getuid() == 0:
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("command", "closed", "said"),
    [
        ("info", "", "scan.npy: cannot be read (Permission denied): check its permissions"),
        ("try", "", "scan.npy: cannot be read (Permission denied): check its permissions"),
        ("info", "scan.npy", "scan.npy: cannot be read (Permission denied): check its permissions"),
        ("check", "scan.npy", "cannot read the pipeline file"),
    ],
)
def test_what_may_not_be_read_says_what_to_do(tmp_path, command, closed, said):
    folder = tmp_path / "closed"
    folder.mkdir()
    np.save(folder / "scan.npy", np.ones((3, 4, 5), np.uint16))
    (folder / closed).chmod(0)
    found = without_rights(command, folder / "scan.npy")
    folder.chmod(0o755)
    (line,) = found.stderr.splitlines()
    assert said in line
    assert found.returncode == 1


@pytest.mark.parametrize("command", ["run", "try"])
def test_results_are_not_put_among_the_frames_of_the_scan(cli, tmp_path, pipeline, command):
    import tifffile

    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(4):
        tifffile.imwrite(folder / f"{number}.tif", np.ones((5, 6), np.uint16))
    before = sorted(folder.iterdir())
    (tmp_path / "link").symlink_to(folder)
    given = [folder, pipeline("method: minus_log")] if command == "run" else [folder]
    status, _, err = cli(command, *given, tmp_path / "link", "--device", "cpu")
    assert status == 2
    assert "link is the scan itself: choose another folder for the results" in err
    assert sorted(folder.iterdir()) == before


def test_a_dtype_that_a_method_refuses_says_what_to_do(cli, tmp_path, pipeline):
    np.save(tmp_path / "scan.npy", np.ones((4, 5, 6)))
    for name in ("median_filter", "remove_stripe_based_sorting"):
        path = pipeline(f"method: {name}")
        status, _, err = cli("run", tmp_path / "scan.npy", path, tmp_path / name, "--device", "cpu")
        assert status == 1
        assert "float64: put " in err
        assert "or save the scan as float32" in err


def test_a_method_that_changes_the_shape_before_flats_is_found_by_check(cli, scan, pipeline):
    path = pipeline(
        "{method: data_resampler, parameters: {newshape: [5, 6]}}",
        "method: dark_flat_field_correction",
    )
    assert cli("check", path)[0] == 0
    for command in (("check", path, scan), ("plan", scan, path)):
        status, _, err = cli(*command)
        assert status == 1
        assert "receives flats of 12x16 for data of 5x6" in err


def test_no_memory_on_the_cpu_is_not_laid_on_cuda(cli, scan, tmp_path, pipeline, monkeypatch):
    monkeypatch.setattr("maxslices.devices.cpu.CpuBackend.free_bytes", lambda self: 0)
    given = scan, pipeline("method: minus_log"), tmp_path / "out"
    status, _, err = cli("run", *given, "--device", "cpu")
    assert status == 3
    assert "no memory is free on cpu" in err
    assert "CUDA" not in err


def test_it_runs_without_being_installed(tmp_path):
    code = """
import importlib.metadata, sys

def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.metadata = missing
from maxslices.cli.main import main

sys.exit(main(sys.argv[1:]))
"""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    assert run("--version").stdout == "maxslices unknown\n"
    assert run("new-methods", "filters").returncode == 0
    assert '"maxslices", "numpy' in (tmp_path / "filters/pyproject.toml").read_text()


def test_a_method_in_a_file_beside_the_pipeline_is_said_to_need_a_package(
    cli, tmp_path, pipeline, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own.py").write_text("raise RuntimeError('pipelines import nothing')")
    status, _, err = cli("check", pipeline("{method: sharpen, module_path: my_own}"))
    assert status == 1
    assert "`maxslices new-methods` makes a package for your own" in err
