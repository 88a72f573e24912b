"""Estimators of httomo-backends and nabu next to measured peaks, as docs/adopting.md shows them.

Called on a machine with a GPU, httomolibgpu, httomo-backends and nabu as

    python docs/scripts/adopting.py OUT [nabu] [httomo]

Each function runs on a block of a size of real scans. Its project's own byte count becomes an
estimator by an adapter, and `check_max_slices` compares that with the peak. Functions that work in
place are compared as well. OUT/peaks.json gets one record a row, and OUT/table.md the table.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from maxslices import Registry, from_ledger
from maxslices.core.ledger import LedgerEstimator
from maxslices.httomo.method_adapters import adapt
from maxslices.httomo.method_database import read_entries
from maxslices.httomo.source_stubs import make_stub
from maxslices.testing import EstimateError, check_max_slices

ANGLES, ROWS, COLUMNS = 1801, 2160, 2560


def from_httomo(
    supporting_functions: Any, method: str, multiplier: float | None = None, **given: Any
) -> LedgerEstimator:
    """Make an estimator of what httomo-backends says of a method.

    It says a multiple of the input's bytes, or has a function of the bytes of a slice and of those
    that are fixed, or one of the bytes of a whole block.
    """
    of_block = getattr(supporting_functions, f"_calc_memory_bytes_for_slices_{method}", None)
    of_slice = getattr(supporting_functions, f"_calc_memory_bytes_{method}", None)

    @from_ledger
    def needs(m, shape, dtype, slice_dim, **parameters):
        parameters |= given  # such as the angles
        others = tuple(size for axis, size in enumerate(shape) if axis != slice_dim)
        if of_block is not None:
            m.alloc_bytes(int(of_block(shape, dtype, **parameters)))
        elif of_slice is not None:
            slice_bytes, fixed_bytes = of_slice(others, dtype, **parameters)
            m.alloc_bytes(int(slice_bytes) * shape[slice_dim] + int(fixed_bytes))
        else:
            m.alloc_bytes(int(multiplier * np.prod(shape) * dtype.itemsize))

    return needs


def from_nabu(step: str, method: str = "") -> LedgerEstimator:
    """Make an estimator of nabu's byte count for one processing step."""
    from nabu.pipeline.fullfield.computations import estimate_required_memory

    @from_ledger
    def needs(m, shape, dtype):
        angles, rows, columns = shape
        config = SimpleNamespace(
            dataset_info=SimpleNamespace(flats=[], darks=[]),
            processing_steps=[step],
            processing_options={
                "sino_rings_correction": {"method": method},
                "reconstruction": {
                    "start_x": 0, "end_x": columns - 1, "start_y": 0, "end_y": columns - 1
                },
            },
            rec_params={"method": "FBP"},
            radio_shape=lambda binning: (rows, columns),
            n_angles=lambda subsampling: angles,
            binning_z=1,
            subsampling_factor=1,
        )  # fmt: skip
        m.alloc_bytes(int(estimate_required_memory(config, delta_z=rows)))

    return needs


def nabu_methods() -> dict[str, tuple[Callable[..., Any], str, LedgerEstimator, dict[str, Any]]]:
    """Functions of nabu as its pipeline calls them, their pattern, estimator and declaration."""
    import cupy
    from nabu.preproc.ccd_cuda import CudaCCDFilter
    from nabu.preproc.phase_cuda import CudaPaganinPhaseRetrieval
    from nabu.reconstruction.fbp import CudaBackprojector
    from nabu.reconstruction.rings_cuda import CudaSinoMeanDeringer, CudaVoDeringer

    def ccd_correction(data):
        correct = CudaCCDFilter(data.shape[1:])
        image = cupy.empty(data.shape[1:], "float32")
        for frame in data:
            correct.median_clip_correction(frame, output=image)
            frame[:] = image
        return data

    def phase(data):
        retrieve = CudaPaganinPhaseRetrieval(data.shape[1:])
        for frame in data:
            retrieve.apply_filter(frame, output=frame)
        return data

    def vo_deringer(data):
        CudaVoDeringer((data.shape[1], data.shape[0], data.shape[2])).remove_rings_radios(data)
        return data

    def mean_deringer(data):
        sinos = data.transpose(1, 0, 2)
        CudaSinoMeanDeringer(sinos.shape).remove_rings_sinograms(sinos)
        return data

    def fbp(data):
        sino_shape = (data.shape[0], data.shape[2])
        project = CudaBackprojector(sino_shape)
        result = cupy.zeros((data.shape[1], data.shape[2], data.shape[2]), "float32")
        for row in range(data.shape[1]):
            project.fbp(cupy.ascontiguousarray(data[:, row]), output=result[row])
        return cupy.moveaxis(result, 0, 1)

    square = {"output_dims": lambda other_dims: (other_dims[1], other_dims[1])}
    return {
        "ccd_correction": (ccd_correction, "projection", from_nabu("ccd_correction"), {}),
        "phase": (phase, "projection", from_nabu("phase"), {}),
        "vo": (vo_deringer, "sinogram", from_nabu("sino_rings_correction", "vo"), {}),
        "mean": (mean_deringer, "sinogram", from_nabu("sino_rings_correction", "mean"), {}),
        "fbp": (fbp, "sinogram", from_nabu("reconstruction"), square),
    }


TV = {"regularisation_parameter": 1e-5, "iterations": 3}
CENTER = {"center": 1280.0}
ITERATIVE = {**CENTER, "iterations": 2}
HTTOMO: list[tuple[str, str, int, dict[str, Any]]] = [
    ("dark_flat_field_correction", "uint16", 64, {}),
    ("minus_log", "float32", 64, {}),
    ("remove_outlier", "uint16", 64, {}),
    ("remove_outlier", "float32", 64, {}),
    ("median_filter", "float32", 64, {}),
    ("total_variation_ROF", "float32", 64, TV),
    ("total_variation_PD", "float32", 64, TV),
    ("total_variation_PD", "float32", 64, {**TV, "half_precision": True}),
    ("paganin_filter", "float32", 64, {}),
    ("paganin_filter", "uint16", 64, {}),
    ("paganin_filter_savu_legacy", "float32", 32, {}),
    ("data_resampler", "float32", 64, {"newshape": [1080, 1280], "axis": 0}),
    ("rescale_to_int", "float32", 64, {"bits": 8}),
    ("remove_stripe_based_sorting", "float32", 64, {}),
    ("remove_stripe_ti", "float32", 64, {}),
    ("remove_stripe_fw", "float32", 64, {}),
    ("remove_all_stripe", "float32", 32, {}),
    ("raven_filter", "float32", 32, {}),
    ("sino_360_to_180", "float32", 64, {"overlap": 200}),
    ("LPRec3d_tomobar", "float32", 32, CENTER),
    ("FBP3d_tomobar", "float32", 32, CENTER),
    ("SIRT3d_tomobar", "float32", 32, ITERATIVE),
    ("CGLS3d_tomobar", "float32", 32, ITERATIVE),
    ("FISTA3d_tomobar", "float32", 32, {**ITERATIVE, "regularisation_iterations": 2}),
]


def httomo_cases() -> list[tuple[str, Any, str, int, dict[str, Any]]]:
    """Methods of httomolibgpu with the estimators of httomo-backends."""
    import importlib

    import yaml

    root = importlib.import_module("httomo_backends.methods_database.packages.backends")
    base = Path(next(iter(root.__path__))) / "httomolibgpu"
    says = yaml.safe_load((base / "httomolibgpu.yaml").read_text())
    entries = {entry.name: entry for entry in read_entries("httomolibgpu")}
    found = []
    for name, dtype, n, parameters in HTTOMO:
        entry = entries[name]
        node = says
        for part in (*entry.module.split(".")[1:], name):
            node = node[part]
        multiplier = node["memory_gpu"]["multiplier"]
        package, _, inner = entry.module.partition(".")
        module = f"{root.__name__}.{package}.supporting_funcs.{inner}"
        try:
            supporting = importlib.import_module(module)
        except ImportError:
            supporting = None
        angles = {"angles": np.linspace(0, np.pi, ANGLES, dtype="float32")}
        estimator = from_httomo(
            supporting,
            name,
            None if multiplier == "None" else float(multiplier),
            **(angles if "LPRec" in name else {}),
        )
        method, declaration = adapt(entry, make_stub(entry.module, name))
        sinograms = entry.module.endswith((".stripe", ".algorithm")) or "sino" in name
        meta = Registry().register(
            method,
            name=name,
            module=entry.module,
            pattern="sinogram" if sinograms else "projection",
            calc_max_slices=estimator,
            **declaration,
        )
        found.append(("httomo-backends", meta, dtype, n, parameters))
    return found


def nabu_cases() -> list[tuple[str, Any, str, int, dict[str, Any]]]:
    """Functions of nabu with its byte counts."""
    return [
        ("nabu", Registry().register(
            function, name=name, module="nabu", pattern=pattern, calc_max_slices=estimator,
            **declaration,
        ), "float32", 64, {})
        for name, (function, pattern, estimator, declaration) in nabu_methods().items()
    ]  # fmt: skip


def main() -> None:
    """Check all, and write records and a table."""
    out = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    rows, lines = [], []
    makers = {"nabu": nabu_cases, "httomo": httomo_cases}
    for make in [makers[name] for name in sys.argv[2:] or makers]:
        try:
            cases = make()
        except Exception as error:  # noqa: BLE001 - a row says it
            lines.append(f"| {make.__name__} | {type(error).__name__}: {error} |")
            continue
        for project, meta, dtype, n, parameters in cases:
            shape = (ANGLES, n, COLUMNS) if meta.pattern == "sinogram" else (n, ROWS, COLUMNS)
            try:
                result = check_max_slices(meta, shape, dtype, 0.8, 1.0, "cuda", **parameters)
            except EstimateError as error:
                result = error.result
            except Exception as error:  # noqa: BLE001 - a row says it
                lines.append(
                    f"| {project} {meta.name} | {type(error).__name__}: {str(error)[:300]} |"
                )
                continue
            row = {
                "project": project, "method": meta.name, "dtype": dtype, "shape": shape,
                "parameters": parameters, "peak_bytes": result.peak_bytes,
                "slices": n, "estimated_slices": result.estimated_slices,
                "ratio": round(result.ratio, 3), "verdict": result.verdict,
            }  # fmt: skip
            rows.append(row)
            lines.append("| " + " | ".join(str(value) for value in row.values()) + " |")
            print(lines[-1], flush=True)
    (out / "peaks.json").write_text(json.dumps(rows, indent=1))
    (out / "table.md").write_text("\n".join(lines) + "\n")
    held = {
        p: [0.8 <= r["ratio"] <= 1 for r in rows if r["project"] == p]
        for p in ("httomo-backends", "nabu")
    }
    print("\n".join(line for line in lines if "Error" in line))
    for project, good in held.items():
        print(f"{project}: {sum(good)} of {len(good)} within 80 to 100 %")


if __name__ == "__main__":
    main()
