"""The example that trains `denoise_unet`'s network, on a scan of a few rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from maxslices_methods._unet_shape import UNetShape, shape_of_file

pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train_denoiser.py"


def test_training_makes_the_reconstruction_better(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("train_denoiser", SCRIPT)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    path = tmp_path / "weights.safetensors"
    before, after = example.main(str(path), n_steps=40, rows=4, columns=128, n_angles=121)
    assert after < 0.95 * before
    assert shape_of_file(str(path)) == UNetShape(16, 3)
    assert "denoised" in capsys.readouterr().out
