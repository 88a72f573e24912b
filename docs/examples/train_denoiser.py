"""Train the network of `denoise_unet` on a noisy scan, without a clean one (noise2noise).

The scan is the demo's, with a weak beam. Its even and its odd projections are reconstructed
apart: the object is the same in both, the noise is not. A network that learns to turn one
reconstruction into the other can only learn what they have in common, the object (Lehtinen et al.,
ICML 2018; for tomography Hendriksen et al., IEEE Trans. Comput. Imaging 6, 1320, 2020). Of the
object's rows every second is learnt from; the others tell how good the network is.

    python docs/examples/train_denoiser.py weights.safetensors

takes a minute or two on two cores, and denoises the reconstruction in a pipeline at the end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

import maxslices
from maxslices.demo.phantom import flower_head
from maxslices.demo.scan_file import PhantomScan, make_scan
from maxslices_methods._unet import denoise, new_weights, save_weights
from maxslices_methods._unet_shape import UNetShape
from maxslices_methods.recon import fbp

BATCH, SIDE = 4, 64
"""Crops in a step of training, and their side in pixels."""
PHOTONS = 1500
"""On a pixel of the open beam, in a frame: much less than the demo has."""


def halves(scan: PhantomScan, pipeline: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Return reconstructions of every second row, of even and of odd projections alone."""
    report = maxslices.run(scan.path, pipeline[:4], device="cpu")
    center = float(report.side_results["find_center_vo.cor"])
    data = np.ascontiguousarray(report.result[:, ::2])
    angles = np.linspace(0, np.pi, len(data), dtype=np.float32)
    settings = pipeline[4]["parameters"] | {"center": center}
    first, second = (
        np.moveaxis(fbp(data[start::2], angles=angles[start::2], **settings), 1, 0)
        for start in (0, 1)
    )
    return first, second


def train(
    first: np.ndarray, second: np.ndarray, n_steps: int, size: UNetShape, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Return the weights of a network that turns slices of either volume into the other's."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    side = min(SIDE, min(first.shape[1:]) // size.step * size.step)
    weights = new_weights(size, float(first.mean()), float(first.std()))
    learnt = [w.requires_grad_() for name, w in weights.items() if name not in ("mean", "scale")]
    optimizer = torch.optim.Adam(learnt, lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=n_steps)
    began = time.perf_counter()
    for step in range(n_steps):
        given, wanted = [], []
        for _ in range(BATCH):
            row = rng.integers(len(first))
            y, x = (rng.integers(n - side + 1) for n in first.shape[1:])
            pair = [v[row, y : y + side, x : x + side] for v in (first, second)]
            turns, swap = rng.integers(4), rng.integers(2)
            given.append(np.rot90(pair[swap], turns))
            wanted.append(np.rot90(pair[1 - swap], turns))
        source, target = (torch.from_numpy(np.stack(each)[:, None]) for each in (given, wanted))
        loss = torch.mean(((denoise(weights, size, source) - target) / weights["scale"]) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99 or step == n_steps - 1:
            print(f"step {step + 1}: loss {loss:.3f}, {time.perf_counter() - began:.0f} s")
    return weights


def rmse(volume: np.ndarray, scan: PhantomScan) -> float:
    """Return the difference from the phantom, 1/mm, over rows that nothing was learnt from."""
    rows = np.arange(1, scan.phantom.rows, 2)
    squares = [
        np.mean((volume[:, row] / scan.phantom.pixel_mm - scan.phantom.slice(row)) ** 2)
        for row in rows[:: max(1, len(rows) // 9)]
    ]
    return float(np.sqrt(np.mean(squares)))


def main(
    path: str, n_steps: int = 800, rows: int = 48, columns: int = 320, n_angles: int = 361
) -> tuple[float, float]:
    """Make a scan, train, write the weights; return the errors before and after."""
    import yaml

    pipeline = yaml.safe_load((files("maxslices.demo") / "demo.yaml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        shift = 0.011 * columns
        scan = make_scan(
            Path(folder) / "scan.nxs", flower_head(rows, columns), n_angles, shift, PHOTONS
        )
        weights = train(*halves(scan, pipeline), n_steps, UNetShape(channels=16, levels=3))
        save_weights(weights, path)
        denoised = [*pipeline, {"method": "denoise_unet", "parameters": {"weights": str(path)}}]
        errors = [
            rmse(maxslices.run(scan.path, steps, device="cpu").result, scan)
            for steps in (pipeline, denoised)
        ]
    print(
        f"RMSE against the phantom: {errors[0]:.3f} /mm as reconstructed, {errors[1]:.3f} denoised"
    )
    return errors[0], errors[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", help="file for the weights, such as weights.safetensors")
    parser.add_argument("--steps", type=int, default=800, help="steps of training")
    given = parser.parse_args()
    main(given.path, given.steps)
