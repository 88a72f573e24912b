"""Record the memory of all methods in httomo's pipelines, at several sizes of the detector.

Run it where there are a GPU, httomolibgpu, httomolib and httomo-backends::

    python docs/scripts/record_pipelines.py OUT PIPELINE... [--limit-s 220] [--memory 12GB]

It plans each pipeline for a scan of each of `SIZES`, and measures what no estimator declares and
no record that comes with maxslices was made of; methods in `AGAIN` at all sizes. At `SMALL`
parameters are varied one by one, to find those on which memory does not depend. OUT gets
``sizes.json.gz`` (records at `SIZES`, as ``maxslices records export`` writes them),
``further.json.gz`` (at `FURTHER`, of which formulas know nothing) and ``same.json`` (parameters
that were varied). ``ship_records.py`` adds these to the records that come with maxslices. Steps
that cannot be planned are left out, and named. With ``--before FILE`` what that ``sizes.json.gz``
has is not measured again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import maxslices.httomo  # noqa: F401  registers httomolibgpu, also where maxslices is not installed
from maxslices.api.plan_scan import ASSUMED_FRAMES
from maxslices.core.arrays import ArraySpec
from maxslices.core.method_registry import registry
from maxslices.core.units import parse_bytes
from maxslices.devices import Backend, select_backend
from maxslices.errors import MaxslicesError, UnknownMethodError
from maxslices.estimate import ModelRequest, ModelResolver, Records, sequence_probe
from maxslices.estimate.model_request import ResolvedModel
from maxslices.estimate.request_key import RequestKey, canonical, request_key
from maxslices.estimate.shipped_records import find_shipped, read_shipped
from maxslices.measure.host_memory import tracemalloc_on
from maxslices.pipeline import ScanSpec
from maxslices.pipeline.pipeline import as_pipeline
from maxslices.planner.section_models import section_models
from maxslices.system.plain_records import to_plain
from maxslices.trial.trial import Trial

SMALL = (600, 540, 640)
DETECTORS = ((1801, 1601, 2557), (1801, 2160, 2560), (1801, 2048, 2048))
"""Angles, rows and columns: an odd detector with primes, and the two commonest."""
FEW_ROWS = ((1801, 4, 2560), (1801, 4, 2048), (1801, 5, 2557), (601, 4, 644))
"""What a sweep reads."""
SIZES = (
    *DETECTORS, *FEW_ROWS, (901, 65, 1279), (1200, 64, 1920), (721, 65, 2001), (1440, 64, 3000),
    (600, 64, 640), (1501, 64, 1601), (1441, 64, 1664), (999, 65, 2303), (720, 64, 1024),
)  # fmt: skip
"""Angles, rows and columns: the two commonest detectors, and others so that even and odd numbers of
columns have several sizes each, in the order of what is missed least if time runs out. Sinograms do
not know of the rows, and with few of them calls are quick."""
COMPARED_AT = (901, 65, 1279)
"""Where blocks of two sizes are compared."""
FURTHER = ((1667, 64, 2399), (1051, 64, 1800))
"""Sizes at which formulas are compared with calls that they were not fitted to."""
AGAIN = (
    "FBP2d_astra", "FBP3d_tomobar", "FISTA3d_tomobar", "LPRec3d_tomobar", "remove_stripe_ti",
)  # fmt: skip
"""Methods measured at all sizes: no formula in the dims was found from those recorded."""
FLOAT_S = 15.0
"""Seconds for scans of float32, of which the first steps alone take other memory."""
SAME = 1e-3
"""Peaks that differ by less are the same: a parameter does not matter."""
INSTEAD: dict[str, dict[str, Any]] = {
    "FISTA3d_tomobar": {"iterations": 2, "regularisation_iterations": 2},
    "distortion_correction_proj_discorpy": {
        "xcenter": 300.5, "ycenter": 250.5, "list_fact": [1.0, 1e-6, 1e-9],
    },
    "total_variation_PD": {"iterations": 3},
    "data_resampler": {"newshape": [1024, 1024]},
}  # fmt: skip
"""Parameters in place of the pipeline's: what it leaves to be filled in, and few iterations where a
call of those that it wants takes half a minute. `VARIED` shows whether that matters."""
ON_HOST = ("rescale_to_int", "FBP2d_astra")
"""Methods that take their block from the device to the host: a few slices take seconds."""
PROVEN_S = 20.0
"""What others rely on is proven by a call with as many slices as fit, if it takes up to this: of
blocks that had not been called FBP3d took up to 6 % more than its record said, FISTA3d 0.08."""
LEFT_OUT = ("save_to_images",)
"""Methods that need no record: they are known to work on the host, and return nothing."""
LAST = {"deg360_distortion_FBP3d_tomobar": "sino_360_to_180"}
"""Last step that is measured of a pipeline: others have the rest."""
VARIED_AT = (5, 8)
"""Slices with which parameters are varied."""
VARIED: dict[str, dict[str, Any]] = {
    "FISTA3d_tomobar": {"iterations": 20, "regularisation_iterations": 50},
    "total_variation_PD": {"iterations": 1000},
    "paganin_filter": {"ratio_delta_beta": 1000},
    "remove_outlier": {"dif": 10_000, "kernel_size": 7},
}
"""Values that are tried in place of twice the value and one."""


def edited(path: Path, out: Path) -> Path:
    """Copy of a pipeline with its sweeps replaced by their first value, and steps as in `INSTEAD`.

    Steps of methods that are not registered, or refused, are left out.
    """

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!Sweep", lambda loader, node: loader.construct_sequence(node)[0])
    Loader.add_constructor(
        "!SweepRange", lambda loader, node: float(loader.construct_mapping(node)["start"])
    )
    kept = []
    for step in yaml.load(path.read_text(), Loader):
        is_loader = step["module_path"].endswith("loaders")
        try:
            if not is_loader:
                registry.get(step["method"], step["module_path"])
        except UnknownMethodError as error:
            print(f"{path.name}: left out: {str(error)[:110]}")
            continue
        if step["method"] in LEFT_OUT:
            continue
        step["parameters"] = (step.get("parameters") or {}) | INSTEAD.get(step["method"], {})
        kept.append(step)
        if step["method"] == LAST.get(path.stem):
            break
    made = out / path.name
    made.write_text(yaml.safe_dump(kept, sort_keys=False))
    return made


def is_shipped(request: ModelRequest, key: RequestKey) -> bool:
    """True if a record that comes with maxslices was made of this request."""
    if request.meta.records is None:
        return False
    return any(
        key.other_dims in record.measured
        and replace(record.question, other_dims=key.other_dims) == key
        for record in read_shipped(Path(request.meta.records))
    )


class RecordingChooser(ModelResolver):
    """Compares blocks at `COMPARED_AT` alone, and measures some methods with less memory."""

    def _compared(self, request: ModelRequest, backend: Backend, made: Any) -> Any:
        at = (COMPARED_AT[0], COMPARED_AT[2]) if request.slice_dim else COMPARED_AT[1:]
        return super()._compared(request, backend, made) if request.other_dims == at else ""

    def _resolve(self, request: ModelRequest) -> ResolvedModel:
        again = request.meta.name in AGAIN or self.device != "cuda"
        key = request_key(request, self._side)
        if not again and is_shipped(request, key):
            return self._completed(request, find_shipped(request.meta, key))
        return super()._choose(request)

    def _probed(self, request: ModelRequest, before: str = "") -> ResolvedModel:
        whole = self._available_bytes
        if request.meta.name in ON_HOST:
            self._available_bytes = whole // 12
        try:
            return super()._probed(request, before)
        finally:
            self._available_bytes = whole


class Recorder:
    """Measures pipelines and keeps the records."""

    def __init__(self, out: Path, backend: Backend, n_bytes: int, limit_s: float) -> None:
        self.out, self.backend, self.n_bytes = out, backend, n_bytes
        self.began, self.limit_s = time.perf_counter(), limit_s

    def time_left(self) -> float:
        """Seconds."""
        return self.limit_s - self.took_s()

    def took_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.began

    def record(
        self,
        pipelines: list[Path],
        size: tuple[int, int, int],
        records: Records,
        dtype: str = "uint16",
    ) -> None:
        """Measure all pipelines for a scan of this size."""
        for path in pipelines:
            if self.time_left() < 0:
                print(f"{size}: no time for {path.name}")
                return
            scan = self.scan(size, dtype=dtype)
            began, resolver = time.perf_counter(), self.resolver(scan, records)
            try:
                section_models(as_pipeline(path), scan, resolver)
                said = ""
            except MaxslicesError as error:
                said = f"{type(error).__name__}: {str(error)[:200]}"
            made = [r.meta.name for r, choice in resolver.resolved if choice.origin == "probed"]
            took_s = time.perf_counter() - began
            if made or said:
                print(
                    f"{size} {path.stem[:24]} {took_s:.1f} s: {' '.join(made)} {said}", flush=True
                )

    def scan(
        self, size: tuple[int, int, int], n_frames: int = ASSUMED_FRAMES, dtype: str = "uint16"
    ) -> ScanSpec:
        """Scan of a size, with flats and darks."""
        whole = ArraySpec(size, dtype)
        frames = whole.with_slices(0, n_frames)
        return ScanSpec(whole, frames, frames, True, name="a scan")

    def resolver(self, scan: ScanSpec, records: Records) -> ModelResolver:
        """ModelResolver that measures methods without a record."""
        side = {"flats": scan.flats, "darks": scan.darks}
        return RecordingChooser(
            self.backend.kind,
            backend=self.backend,
            records=records,
            available_bytes=self.n_bytes,
            side=side,
        )

    def vary(self, pipelines: list[Path], records: Records) -> list[dict[str, Any]]:
        """Measure methods with other parameters at `SMALL`, those in `VARIED` first."""
        requests: dict[str, ModelRequest] = {}
        for path in pipelines if self.time_left() > 0 else ():
            resolver = self.resolver(self.scan(SMALL), records)
            try:
                section_models(as_pipeline(path), self.scan(SMALL), resolver)
            except MaxslicesError:
                continue
            requests |= {
                canonical(to_plain(request_key(each))): each for each, _ in resolver.resolved
            }
        found: list[dict[str, Any]] = []
        for request in sorted(requests.values(), key=lambda each: each.meta.name not in VARIED):
            base: dict[int, int] = {}
            for changed, n_frames in self.variations(request):
                if self.time_left() < 0:
                    return found
                base = base or self.pool_bytes(request, {}, ASSUMED_FRAMES)
                found.append(self.compared(request, changed, n_frames, base))
        return found

    def pool_bytes(
        self, request: ModelRequest, changed: dict[str, Any], n_frames: int
    ) -> dict[int, int]:
        """Peaks in CuPy's pool by slices. Memory outside is read too coarsely to compare."""
        scan = self.scan(SMALL, n_frames)
        trial = Trial(
            request.meta, *request.slices, self.backend, {**request.parameters, **changed},
            frames={"flats": scan.flats, "darks": scan.darks},
        )  # fmt: skip
        with tracemalloc_on(self.backend.kind):
            trial.once(VARIED_AT[0])
            calls = [trial.once(n) for n in VARIED_AT]
            trial.close()
        return {call.n_slices: call.n_bytes - call.outside_bytes for call in calls}

    def variations(self, request: ModelRequest) -> Iterator[tuple[dict[str, Any], int]]:
        """Other values of parameters, and a number of frames."""
        special = VARIED.get(request.meta.name, {})
        shipped = request.meta.records
        known_same = {
            name
            for record in (read_shipped(Path(shipped)) if shipped is not None else ())
            if record.question.parameters == request_key(request).parameters
            for name in record.same
        }
        for changed, n_frames in self._all_variations(request, special):
            if not known_same.issuperset(changed or {"flats"}):
                yield changed, n_frames

    def _all_variations(
        self, request: ModelRequest, special: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        for name, value in request.parameters.items():
            if name in special:
                yield {name: special[name]}, ASSUMED_FRAMES
            elif type(value) is int:
                yield {name: 2 * value + 1}, ASSUMED_FRAMES
        known = request.meta.parameters
        if "center" in known:
            yield {"center": SMALL[2] * 0.47}, ASSUMED_FRAMES
        if "glob_stats" in known:
            yield {"glob_stats": (0.1, 1.0, 0.5, 10)}, ASSUMED_FRAMES
        if "metadata_path" in known:
            lines = ["xcenter = 300.5", "ycenter = 250.5"]
            lines += [f"factor{i} = {factor}" for i, factor in enumerate((1.0, 1e-6, 1e-9))]
            file = self.out / "distortion.txt"
            file.write_text("\n".join(lines) + "\n")
            given = dict.fromkeys(("xcenter", "ycenter", "list_fact"))
            yield {"metadata_path": str(file.resolve()), **given}, ASSUMED_FRAMES
        if "flats" in request.meta.supplied:
            yield {}, 50

    def compared(
        self,
        request: ModelRequest,
        changed: dict[str, Any],
        n_frames: int,
        base: dict[int, int],
    ) -> dict[str, Any]:
        """Measure a method with parameters, or the number of flats and darks, changed."""
        key, said, most = request_key(request), "", 1.0
        try:
            now = self.pool_bytes(request, changed, n_frames)
            most = max((abs(now[n] / base[n] - 1) for n in now if n in base), default=1.0)
        except Exception as error:  # noqa: BLE001  values that a method refuses are left out
            said = f"{type(error).__name__}: {str(error)[:120]}"
        before = {name: key.parameters.get(name) for name in changed}
        shown = said or ("same" if most <= SAME else f"{most:.2%}")
        print(f"{request.meta.name} {changed or n_frames}: {shown}", flush=True)
        return {
            "method": key.method, "parameters": key.parameters, "dtype": key.dtype,
            "before": before or {"flats": ASSUMED_FRAMES}, "after": changed or {"flats": n_frames},
            "same": most <= SAME, "error": said,
        }  # fmt: skip


def export(records: Records, path: Path) -> None:
    """Write records into a packed file."""
    records.export(path.with_suffix(""))
    with gzip.open(path, "wb", 9) as file:
        file.write(path.with_suffix("").read_bytes())
    path.with_suffix("").unlink()


def main() -> None:
    """Parse, record, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("pipelines", type=Path, nargs="+")
    parser.add_argument("--limit-s", type=float, default=220.0)
    parser.add_argument("--vary-s", type=float, default=30.0)
    parser.add_argument("--memory", default="12GB")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    out: Path = options.out
    (out / "work").mkdir(parents=True, exist_ok=True)
    backend = select_backend(options.device)
    sequence_probe.PROOF_S = PROVEN_S
    pipelines = [edited(path, out / "work") for path in options.pipelines]
    recorder = Recorder(out / "work", backend, parse_bytes(options.memory), options.limit_s)
    sizes, further = (Records(out / "work" / name) for name in ("sizes", "further"))
    if options.before is not None:
        plain = out / "work" / "before.json"
        plain.write_bytes(gzip.decompress(options.before.read_bytes()))
        sizes.import_file(plain)
    order = [*((size, sizes) for size in SIZES), *((size, further) for size in FURTHER)]
    for size, records in order:
        began = time.perf_counter()
        recorder.record(pipelines, size, records)
        print(f"{size}: {time.perf_counter() - began:.1f} s", flush=True)
        export(sizes, out / "sizes.json.gz")
        if further.entries():
            export(further, out / "further.json.gz")
    print(f"{len(sizes.entries())} + {len(further.entries())} records, {recorder.took_s():.0f} s")
    recorder.limit_s = options.vary_s + recorder.took_s() if options.vary_s else 0.0
    same = recorder.vary(pipelines, sizes)
    (out / "same.json").write_text(json.dumps(same, indent=1))
    print(f"{len(same)} parameters varied, {recorder.took_s():.0f} s")
    recorder.limit_s = FLOAT_S + recorder.took_s()
    for size in SIZES[:7]:
        recorder.record(pipelines, size, sizes, "float32")
    export(sizes, out / "sizes.json.gz")
    print(f"{len(sizes.entries())} records with scans of float32, {recorder.took_s():.0f} s")


if __name__ == "__main__":
    main()
