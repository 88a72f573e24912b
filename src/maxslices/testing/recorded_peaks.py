"""Files of peaks that were measured on a device, for comparisons with estimators anywhere."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..checking.case import Case
from ..checking.check_result import LOWER, UPPER, CheckResult
from ..checking.estimate_check import compare
from ..core.arrays import ArraySpec
from ..core.method_registry import Registry, registry
from ..core.parameters import SUPPLIED
from ..devices.backend import device_name, select_backend
from ..errors import UsageError
from ..estimate import ModelRequest
from ..system.packages import installed_version

FORMAT = 1
Record = dict[str, Any]
_FIELDS = ("method", "package_version", "shape", "dtype", "slice_dim", "parameters", "device",
           "peak_bytes", "environment")  # fmt: skip


def make_record(result: CheckResult) -> Record | None:
    """Make the record of a measurement, with its machine.

    Returns None if JSON cannot represent one of the parameters, such as an array.
    """
    parameters = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in result.parameters.items()
    }
    try:
        json.dumps(parameters)
    except (TypeError, ValueError):
        return None
    return {
        "method": result.method,
        "package_version": package_version(result.method),
        "shape": list(result.shape),
        "dtype": result.dtype,
        "slice_dim": result.slice_dim,
        "parameters": parameters,
        "device": result.device,
        "peak_bytes": result.peak_bytes,
        "environment": environment(result.device),
    }


def record_id(record: Mapping[str, Any]) -> str:
    """Test id of a record, in the form of a `Case`."""
    name = str(record["method"]).rsplit(".", 1)[-1]
    case = Case(
        name, tuple(record["shape"]), record["dtype"], record["parameters"], record["slice_dim"]
    )
    return str(case)


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Add records to a file, replacing older ones of the same call on the same kind of device.

    Returns
    -------
    int
        Number of records in the file.
    """
    kept = {_key(record): record for record in (read_records(path) if path.exists() else [])}
    kept |= {_key(record): record for record in records}
    ordered = [kept[key] for key in sorted(kept)]
    environments: list[Mapping[str, Any]] = []
    rows = []
    for record in ordered:
        if record["environment"] not in environments:
            environments.append(record["environment"])
        rows.append(record | {"environment": environments.index(record["environment"])})
    lines = ",\n".join("    " + json.dumps(row, sort_keys=True) for row in rows)
    machines = ",\n".join("    " + json.dumps(e, sort_keys=True) for e in environments)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'{{\n  "format": {FORMAT},\n  "environments": [\n{machines}\n  ],\n'
        f'  "records": [\n{lines}\n  ]\n}}\n'
    )
    return len(rows)


def read_records(path: Path) -> list[Record]:
    """Read a file of records.

    Raises
    ------
    UsageError
        If the file is missing or invalid.
    """
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']!r}")
        machines = content["environments"]
        rows = [row | {"environment": machines[row["environment"]]} for row in content["records"]]
    except OSError as error:
        raise UsageError(f"{path}: recorded peaks cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{path} is not a file of recorded peaks of format {FORMAT} "
            f"({type(error).__name__}: {error})"
        ) from None
    for number, row in enumerate(rows, 1):
        missing = [name for name in _FIELDS if name not in row]
        if missing:
            raise UsageError(f"{path}: record {number} lacks {', '.join(missing)}")
    return rows


def replay(
    record: Mapping[str, Any],
    bounds: tuple[float, float] = (LOWER, UPPER),
    methods: Registry = registry,
) -> CheckResult:
    """Compare a method's estimator with a recorded peak, without running the method."""
    spec, slice_dim = ArraySpec(record["shape"], record["dtype"]), record["slice_dim"]
    request = ModelRequest(
        methods.get(record["method"]),
        slice_dim,
        spec.other_dims(slice_dim),
        spec.dtype,
        {name: value for name, value in record["parameters"].items() if name not in SUPPLIED},
        spec.shape[slice_dim],
    )
    return compare(request, record["device"], record["peak_bytes"], bounds)


def package_version(full_name: str) -> str | None:
    """Version of a method's installed package, or None if it is not installed."""
    return _versions_by_module().get(full_name.split(".", 1)[0])


@lru_cache(maxsize=1)
def _versions_by_module() -> dict[str, str]:
    package_versions = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        package_versions[module] = importlib.metadata.version(distributions[0])
    return package_versions


@lru_cache(maxsize=2)
def environment(device: str) -> dict[str, Any]:
    """Device and versions that a measurement depends on."""
    versions = {name: installed_version(name) for name in ("maxslices", "numpy", "scipy", "torch")}
    environment: dict[str, Any] = {"device_name": "CPU", "python": sys.version.split()[0]}
    if device == "cuda":
        import cupy

        runtime = cupy.cuda.runtime
        versions["cupy"] = cupy.__version__
        environment["device_name"] = device_name(select_backend(device))
        environment["driver"] = int(runtime.driverGetVersion())
        environment["cuda_runtime"] = int(runtime.runtimeGetVersion())
        environment["cufft"] = int(cupy.cuda.cufft.getVersion())
    known_versions = {name: version for name, version in versions.items() if version != "unknown"}
    return environment | {"libraries": known_versions}


def _key(record: Mapping[str, Any]) -> str:
    parameters = json.dumps(record["parameters"], sort_keys=True)
    place = f"{record['device']} {record['environment'].get('device_name')}"
    return f"{record['method']} {record['shape']} {record['dtype']} {record['slice_dim']} " + (
        f"{parameters} {place}"
    )
