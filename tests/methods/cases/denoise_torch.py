"""Cases for the methods of `maxslices_methods.denoise_torch`."""

from __future__ import annotations

from maxslices.checking.case import Case

WEIGHTS = "tests/methods/data/unet.safetensors"
"""Random weights of the smallest network of three levels; from the root of the repository."""

_NLM = {"strength": 0.3, "search_size": 5, "patch_size": 3}
_COUNTS = _NLM | {"strength": 9000.0}
_UNET = {"weights": WEIGHTS}

CASES = [
    Case("nonlocal_means", (60, 60, 41), parameters=_NLM),
    Case("nonlocal_means", (53, 61, 37), "uint16", _COUNTS | {"noise": 3000.0}),
    Case("nonlocal_means", (53, 61, 37), parameters=_NLM | {"patch_size": 1}),
    Case("denoise_unet", (53, 50, 31), parameters=_UNET),
    Case("denoise_unet", (51, 37, 41), "uint16", _UNET | {"tile": 32}, slice_dim=0),
]

GPU_CASES = [
    Case("nonlocal_means", (64, 2160, 2560), parameters=_NLM, slice_dim=0),
    Case("nonlocal_means", (1801, 64, 2560), parameters=_NLM, slice_dim=1),
    Case("nonlocal_means", (61, 2161, 2557), "uint16", _COUNTS, slice_dim=0),
    Case("nonlocal_means", (401, 251, 253), parameters=_NLM | {"patch_size": 5}, slice_dim=0),
    Case("denoise_unet", (64, 2160, 2560), parameters=_UNET, slice_dim=0),
    Case("denoise_unet", (1801, 64, 2560), parameters=_UNET, slice_dim=1),
    Case("denoise_unet", (61, 2161, 2557), "uint16", _UNET | {"tile": 1024}, slice_dim=0),
    Case("denoise_unet", (401, 251, 253), parameters=_UNET | {"tile": 2048}, slice_dim=0),
]
