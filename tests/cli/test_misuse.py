"""Wrong command lines: unreadable inputs, unsuitable outputs, and a program not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest


def without_rights(*arguments):
    """Run the command line with the permissions of an ordinary user, also as root."""
    command = [sys.executable, "-m", "maxslices", *map(str, arguments)]
    if os.getuid() == 0:
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("command", "closed", "message"),
    [
        ("info", "", "scan.npy: cannot be read (Permission denied): check its permissions"),
        ("try", "", "scan.npy: cannot be read (Permission denied): check its permissions"),
        ("info", "scan.npy", "scan.npy: cannot be read (Permission denied): check its permissions"),
        ("check", "scan.npy", "cannot read the pipeline file"),
    ],
)
def test_unreadable_input_names_a_remedy(tmp_path, command, closed, message):
    folder = tmp_path / "closed"
    folder.mkdir()
    np.save(folder / "scan.npy", np.ones((3, 4, 5), np.uint16))
    (folder / closed).chmod(0)
    process = without_rights(command, folder / "scan.npy")
    folder.chmod(0o755)
    (line,) = process.stderr.splitlines()
    assert message in line
    assert process.returncode == 1


@pytest.mark.parametrize("command", ["run", "try"])
def test_results_are_not_written_into_the_folder_of_the_scan(cli, tmp_path, pipeline, command):
    import tifffile

    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(4):
        tifffile.imwrite(folder / f"{number}.tif", np.ones((5, 6), np.uint16))
    before = sorted(folder.iterdir())
    (tmp_path / "link").symlink_to(folder)
    inputs = [folder, pipeline("method: minus_log")] if command == "run" else [folder]
    status, _, err = cli(command, *inputs, tmp_path / "link", "--device", "cpu")
    assert status == 2
    assert "link is the scan itself: choose another folder for the results" in err
    assert sorted(folder.iterdir()) == before


def test_dtype_that_a_method_rejects_names_a_remedy(cli, tmp_path, pipeline):
    np.save(tmp_path / "scan.npy", np.ones((4, 5, 6)))
    for name in ("median_filter", "remove_stripe_based_sorting"):
        path = pipeline(f"method: {name}")
        status, _, err = cli("run", tmp_path / "scan.npy", path, tmp_path / name, "--device", "cpu")
        assert status == 1
        assert "float64: put " in err
        assert "or save the scan as float32" in err


def test_check_finds_a_change_of_shape_before_flats_are_used(cli, scan, pipeline):
    path = pipeline(
        "{method: data_resampler, parameters: {newshape: [5, 6]}}",
        "method: dark_flat_field_correction",
    )
    assert cli("check", path)[0] == 0
    for command in (("check", path, scan), ("plan", scan, path)):
        status, _, err = cli(*command)
        assert status == 1
        assert "receives flats of 12x16 for data of 5x6" in err


def test_lack_of_memory_on_the_cpu_does_not_blame_cuda(cli, scan, tmp_path, pipeline, monkeypatch):
    monkeypatch.setattr("maxslices.devices.cpu.CpuBackend.free_bytes", lambda self: 0)
    arguments = scan, pipeline("method: minus_log"), tmp_path / "out"
    status, _, err = cli("run", *arguments, "--device", "cpu")
    assert status == 3
    assert "no memory is free on cpu" in err
    assert "CUDA" not in err


def test_program_runs_without_an_installation(tmp_path):
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


def test_method_in_a_file_next_to_the_pipeline_needs_a_package(
    cli, tmp_path, pipeline, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own.py").write_text("raise RuntimeError('pipelines import nothing')")
    status, _, err = cli("check", pipeline("{method: sharpen, module_path: my_own}"))
    assert status == 1
    assert "`maxslices new-methods` makes a package for your own" in err
