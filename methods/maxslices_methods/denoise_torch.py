"""Denoising of torch tensors: non-local means, and a trained network."""

from __future__ import annotations

from typing import Any

import numpy as np

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from ._unet_shape import account, alloc_tensor, shape_of_file

PIXELS = 2**20
"""`nonlocal_means` works on at least this many pixels at a time, enough to keep a GPU busy."""
SMALL_BYTES, LOADING_BYTES = 2**13, 56 * 2**10
"""Bytes of Python objects besides the arrays, in a call and while weights are read: safetensors 0.8
makes ten a tensor, 18 kB for the 24 tensors of a small U-Net, and torch 36 KiB."""


@from_ledger
def _nlm_bytes(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    slice_dim: int,
    patch_size: int,
    search_size: int,
) -> None:
    rows, columns = (n for axis, n in enumerate(shape) if axis != slice_dim)
    n = min(shape[slice_dim], _at_a_time(rows, columns))
    radius, margin = patch_size // 2, patch_size // 2 + search_size // 2
    m.alloc(shape, dtype)
    alloc_tensor(m, shape)
    alloc_tensor(m, (n, rows, columns))
    m.alloc(rows + columns + 4 * margin, np.int64)
    alloc_tensor(m, (n, rows + 2 * margin, columns + 2 * margin))
    for _ in range(3):  # sum, weights, a weight
        alloc_tensor(m, (n, rows, columns))
    alloc_tensor(m, (n, rows + 2 * radius, columns + 2 * radius))
    alloc_tensor(m, (n, rows, columns + 2 * radius))
    m.alloc_bytes(SMALL_BYTES)


@method(
    "all",
    calc_max_slices=_nlm_bytes,
    output_dtype=np.float32,
    array_module="torch",
    gives="same",
)
def nonlocal_means(
    data: Any,
    strength: float,
    noise: float = 0.0,
    patch_size: int = 5,
    search_size: int = 13,
    *,
    slice_dim: int = 0,
) -> Any:
    """Denoise each slice by non-local means: average pixels with similar surroundings.

    Parameters
    ----------
    data : torch.Tensor
        Volume, shape (angles, detector_y, detector_x), of any real dtype.
    strength : float
        Difference between surroundings at which a pixel's weight falls to 1/e, above 0, in the
        unit of the data. With `noise`, about 0.8 times the standard deviation of the noise.
    noise : float
        Standard deviation of the noise, which is subtracted from the differences.
    patch_size : int
        Side of the surroundings in pixels, odd.
    search_size : int
        Side of the search window in pixels, odd.
    slice_dim : int
        Axis of the slices; supplied by the runner.

    Returns
    -------
    torch.Tensor
        The volume, float32.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    Follows Buades, Coll and Morel (CVPR 2005), with unweighted means over square surroundings. The
    pixel itself is part of the average. Slices are mirrored at their edges.

    scikit-image's ``denoise_nl_means`` (0.26) uses other surroundings. With ``fast_mode=True`` it
    sums squares over ``patch_size - 1`` pixels along each axis, one more after the pixel than
    before it, and divides by ``patch_size ** 2``. Otherwise it weights them by a Gaussian with the
    standard deviation ``(patch_size - 1) / 4``. Both omit pixels whose weight is below exp(-5), and
    approximate exponentials to a few percent.
    """
    import torch

    from . import _nlm

    _require_tensor("nonlocal_means", data)
    if not strength > 0 or not noise >= 0:
        raise ValueError(
            "nonlocal_means: strength must be over 0 and noise at least 0, not "
            f"{strength} and {noise}"
        )
    for name, side in (("patch_size", patch_size), ("search_size", search_size)):
        if side < 1 or side % 2 == 0:
            raise ValueError(f"nonlocal_means: {name} must be odd and at least 1, not {side}")
    result = torch.empty(data.shape, dtype=torch.float32, device=data.device)
    rows, columns = (n for axis, n in enumerate(data.shape) if axis != slice_dim)
    n_slices, step = data.shape[slice_dim], _at_a_time(rows, columns)
    for start in range(0, n_slices, step):
        n = min(step, n_slices - start)
        planes = torch.empty((n, rows, columns), dtype=torch.float32, device=data.device)
        planes.copy_(data.narrow(slice_dim, start, n).movedim(slice_dim, 0))
        denoised = _nlm.denoise_slices(planes, strength, noise, patch_size, search_size)
        result.narrow(slice_dim, start, n).copy_(denoised.movedim(0, slice_dim))
        del planes, denoised
    return result


def _at_a_time(rows: int, columns: int) -> int:
    """Number of slices worked on together: one if it is large enough for a GPU."""
    return max(1, PIXELS // (rows * columns))


@from_ledger
def _unet_bytes(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    slice_dim: int,
    weights: str,
    tile: int,
) -> None:
    size = shape_of_file(weights)
    rows, columns = (n for axis, n in enumerate(shape) if axis != slice_dim)
    m.alloc(shape, dtype)
    alloc_tensor(m, shape)
    if dtype != np.float32:
        alloc_tensor(m, (rows, columns))
    tall, wide = size.tile_dims((rows, columns), tile)
    m.alloc(2 * (rows + columns + tall + wide + 4 * size.halo), np.int64)
    m.alloc_bytes(LOADING_BYTES)
    account(m, size, (rows, columns), tile)


@method(
    "all",
    calc_max_slices=_unet_bytes,
    output_dtype=np.float32,
    array_module="torch",
    gives="same",
)
def denoise_unet(data: Any, weights: str, tile: int = 512, *, slice_dim: int = 0) -> Any:
    """Denoise each slice by a small U-Net.

    Parameters
    ----------
    data : torch.Tensor
        Volume, shape (angles, detector_y, detector_x), of any real dtype.
    weights : str
        Safetensors file with the network's weights, as from ``docs/examples/train_denoiser.py`` in
        the repository.
    tile : int
        Side of the tiles in pixels, at least 32. Each tile is computed with the network's receptive
        field around it. Larger tiles are quicker and need more memory.
    slice_dim : int
        Axis of the slices; supplied by the runner.

    Returns
    -------
    torch.Tensor
        The volume, float32.

    Raises
    ------
    ValueError
        If the file does not have weights of this network, or `tile` is below 32.
    """
    import torch

    from . import _unet

    _require_tensor("denoise_unet", data)
    if tile < 32:
        raise ValueError(f"denoise_unet: tile must be at least 32, not {tile}")
    loaded, size = _unet.load_weights(weights, data.device)
    result = torch.empty(data.shape, dtype=torch.float32, device=data.device)
    with (
        torch.no_grad(),
        torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ),
    ):
        for index in range(data.shape[slice_dim]):
            plane = data.select(slice_dim, index).to(torch.float32)
            _unet.denoise_slice(loaded, size, plane, result.select(slice_dim, index), tile)
    return result


def _require_tensor(name: str, data: Any) -> None:
    import torch

    if not isinstance(data, torch.Tensor):
        raise TypeError(
            f"{name} takes a torch tensor, not {type(data).__name__}: give it "
            "torch.from_numpy(data), or run it as a step of a pipeline"
        )
