"""Functions of other public packages for tomography on a GPU, whose memory is recorded.

Each is given a block of float32 on the GPU, (projections, rows, columns) or (angles, sinograms,
columns), and calls the package as its own documentation does. `record_sequences.py --packages`
records them; `field_memory.py` makes a table of the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PROJECTIONS, SINOGRAMS = 0, 1
"""Axes of the slices."""
OUTER, INNER = 2, 3
"""Iterations of a method, and of the filter inside it: memory does not grow with them."""


@dataclass(frozen=True)
class PackageFunction:
    """A function and what the table says of it."""

    package: str
    """Name on PyPI, and folder of the code."""
    name: str
    call: Callable[..., Any]
    slice_dim: int
    parameters: dict[str, Any] = field(default_factory=dict)
    """Passed to the function, and shown."""


def angles_of(block: Any) -> Any:
    """Angles of half a turn, radians."""
    return np.linspace(0, np.pi, block.shape[0], endpoint=False, dtype=np.float32)


def geometry(block: Any) -> dict[str, Any]:
    """A parallel beam as ToMoBAR describes it, for a block of (angles, sinograms, columns)."""
    return {
        "DetectorsDimH": block.shape[2],
        "DetectorsDimH_pad": 0,
        "DetectorsDimV": block.shape[1],
        "CenterRotOffset": 0.0,
        "AnglesVec": angles_of(block),
        "ObjSize": block.shape[2],
    }


def tomobar_direct(method: str, projector: str = "astra") -> Callable[..., Any]:
    """One of ToMoBAR's direct methods, on (angles, sinograms, columns)."""

    def call(block: Any, **parameters: Any) -> Any:
        from tomobar.methodsDIR_CuPy import RecToolsDIRCuPy

        tools = RecToolsDIRCuPy(**geometry(block), projector=projector)
        labels = ["angles", "detY", "detX"]
        return getattr(tools, method)(block, data_axes_labels_order=labels, **parameters)

    return call


def tomobar_iterative(method: str, subsets: int | None = None) -> Callable[..., Any]:
    """One of ToMoBAR's iterative methods, on (angles, sinograms, columns)."""

    def call(block: Any, iterations: int = OUTER, regularisation: str = "", **data: Any) -> Any:
        from tomobar.methodsIR_CuPy import RecToolsIRCuPy

        tools = RecToolsIRCuPy(**geometry(block), OS_number=subsets)
        given = {"projection_data": block, "data_axes_labels_order": ["angles", "detY", "detX"]}
        asked = [given | data, {"iterations": iterations}]
        if method in ("FISTA", "ADMM"):
            asked[1]["lipschitz_const"] = 1e6
            asked.append({"method": regularisation, "iterations": INNER})
        return getattr(tools, method)(*asked)

    return call


def ccpi(method: str) -> Callable[..., Any]:
    """One of the regularisers of the CCPi toolkit's CuPy edition."""

    def call(block: Any, iterations: int = INNER) -> Any:
        from ccpi.filters import regularisersCuPy

        return getattr(regularisersCuPy, method)(block, iterations=iterations)

    return call


def cucim(module: str, name: str) -> Callable[..., Any]:
    """A function of cuCIM on the whole block; `footprint` is the shape of one of ones."""

    def call(block: Any, **parameters: Any) -> Any:
        import importlib

        import cupy

        if "footprint" in parameters:
            parameters["footprint"] = cupy.ones(parameters["footprint"], bool)
        if "psf" in parameters:
            parameters["psf"] = cupy.full(parameters["psf"], 1 / np.prod(parameters["psf"]), "f4")
        return getattr(importlib.import_module(f"cucim.skimage.{module}"), name)(
            block, **parameters
        )

    return call


def cucim_each(module: str, name: str) -> Callable[..., Any]:
    """A function of cuCIM on one slice after the other, into a list that is stacked."""

    def call(block: Any, **parameters: Any) -> Any:
        import cupy

        one = cucim(module, name)
        return cupy.stack([one(each, **parameters) for each in block])

    return call


def nabu_fbp(block: Any) -> Any:
    """Filtered back projection of one sinogram after the other."""
    import cupy
    from nabu.reconstruction.fbp import Backprojector

    width = block.shape[2]
    tools = Backprojector((block.shape[0], width), angles=angles_of(block))
    result = cupy.empty((block.shape[1], width, width), "f4")
    for i, one in enumerate(result):
        tools.fbp(cupy.ascontiguousarray(block[:, i]), output=one)
    return result


def nabu_median(block: Any) -> Any:
    """Median of 3 x 3 of all projections at once."""
    import cupy
    from nabu.processing.medfilt_cuda import MedianFilter

    result = cupy.empty_like(block)
    MedianFilter(block.shape).medfilt2(block, output=result)
    return result


def nabu_unsharp(block: Any) -> Any:
    """Unsharp mask of one projection after the other."""
    import cupy
    from nabu.processing.unsharp_cuda import CudaUnsharpMask

    tools = CudaUnsharpMask(block.shape[1:], 1.0, 0.5)
    result = cupy.empty_like(block)
    for one, sharper in zip(block, result, strict=True):
        tools.unsharp(one, output=sharper)
    return result


FUNCTIONS: tuple[PackageFunction, ...] = (
    PackageFunction("tomobar", "RecToolsDIRCuPy.FBP", tomobar_direct("FBP"), SINOGRAMS),
    PackageFunction("tomobar", "RecToolsDIRCuPy.BACKPROJ", tomobar_direct("BACKPROJ"), SINOGRAMS),
    PackageFunction(
        "tomobar", "RecToolsDIRCuPy.FOURIER_INV", tomobar_direct("FOURIER_INV", "fourier"),
        SINOGRAMS, {"filter_type": "shepp", "cutoff_freq": 1.0},
    ),
    PackageFunction(
        "tomobar", "RecToolsIRCuPy.Landweber", tomobar_iterative("Landweber"), SINOGRAMS
    ),
    PackageFunction("tomobar", "RecToolsIRCuPy.SIRT", tomobar_iterative("SIRT"), SINOGRAMS),
    PackageFunction("tomobar", "RecToolsIRCuPy.CGLS", tomobar_iterative("CGLS"), SINOGRAMS),
    PackageFunction("tomobar", "RecToolsIRCuPy.OSEM", tomobar_iterative("OSEM", 12), SINOGRAMS),
    PackageFunction(
        "tomobar", "RecToolsIRCuPy.FISTA", tomobar_iterative("FISTA", 12), SINOGRAMS,
        {"regularisation": "PD_TV"},
    ),
    PackageFunction(
        "tomobar", "RecToolsIRCuPy.FISTA", tomobar_iterative("FISTA", 12), SINOGRAMS,
        {"regularisation": "ROF_TV"},
    ),
    PackageFunction(
        "tomobar", "RecToolsIRCuPy.ADMM", tomobar_iterative("ADMM"), SINOGRAMS,
        {"regularisation": "PD_TV"},
    ),
    PackageFunction("ccpi-regularisation-cupy", "ROF_TV", ccpi("ROF_TV"), PROJECTIONS),
    PackageFunction("ccpi-regularisation-cupy", "PD_TV", ccpi("PD_TV"), PROJECTIONS),
    PackageFunction("nabu", "Backprojector.fbp", nabu_fbp, SINOGRAMS),
    PackageFunction("nabu", "MedianFilter", nabu_median, PROJECTIONS),
    PackageFunction("nabu", "CudaUnsharpMask", nabu_unsharp, PROJECTIONS),
    PackageFunction(
        "cucim", "filters.gaussian", cucim("filters", "gaussian"), PROJECTIONS,
        {"sigma": (0, 2, 2)},
    ),
    PackageFunction(
        "cucim", "filters.median", cucim("filters", "median"), PROJECTIONS,
        {"footprint": (1, 3, 3)},
    ),
    PackageFunction(
        "cucim", "filters.difference_of_gaussians", cucim("filters", "difference_of_gaussians"),
        PROJECTIONS, {"low_sigma": (0, 1, 1), "high_sigma": (0, 3, 3)},
    ),
    PackageFunction(
        "cucim", "filters.unsharp_mask", cucim("filters", "unsharp_mask"), PROJECTIONS,
        {"channel_axis": 0},
    ),
    PackageFunction(
        "cucim", "restoration.denoise_tv_chambolle", cucim("restoration", "denoise_tv_chambolle"),
        PROJECTIONS, {"max_num_iter": 3},
    ),
    PackageFunction(
        "cucim", "restoration.richardson_lucy", cucim_each("restoration", "richardson_lucy"),
        PROJECTIONS, {"psf": (7, 7), "num_iter": 3},
    ),
    PackageFunction(
        "cucim", "exposure.equalize_adapthist", cucim_each("exposure", "equalize_adapthist"),
        PROJECTIONS,
    ),
    PackageFunction(
        "cucim", "transform.rotate", cucim_each("transform", "rotate"), PROJECTIONS,
        {"angle": 3.0},
    ),
    PackageFunction(
        "cucim", "transform.downscale_local_mean", cucim("transform", "downscale_local_mean"),
        PROJECTIONS, {"factors": (1, 2, 2)},
    ),
    PackageFunction(
        "cucim", "morphology.white_tophat", cucim("morphology", "white_tophat"), PROJECTIONS,
        {"footprint": (1, 5, 5)},
    ),
)  # fmt: skip
"""What of these packages takes blocks of a scan and installs from wheels without a compiler."""
