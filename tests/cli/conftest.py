from __future__ import annotations

import h5py
import numpy as np
import pytest

from maxslices.cli.main import main

SHAPE = (30, 12, 16)


@pytest.fixture
def cli(capsys):
    """Function that runs the command line: exit status, standard output, standard error."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def scan(tmp_path):
    """An NXtomo file with flats, darks and angles."""
    path = tmp_path / "scan.nxs"
    keys = np.array([1] * 4 + [2] * 3 + [0] * SHAPE[0])
    frames = np.random.default_rng(0).integers(100, 200, (len(keys), *SHAPE[1:]), np.uint16)
    frames[keys == 1] = 1000
    frames[keys == 2] = 10
    with h5py.File(path, "w") as file:
        file["entry1/tomo_entry/data/data"] = frames
        angles = np.zeros(len(keys))
        angles[keys == 0] = np.linspace(0, 180, SHAPE[0])
        file["entry1/tomo_entry/data/rotation_angle"] = angles
        file["entry1/tomo_entry/instrument/detector/image_key"] = keys
    return path


@pytest.fixture
def pipeline(tmp_path):
    """Function that writes a pipeline file."""

    def write(*steps, name="pipeline.yaml"):
        path = tmp_path / name
        path.write_text("\n".join(f"- {step}" for step in steps))
        return path

    return write
