"""Tables of docs/benchmarks/field-memory.md: the memory that public GPU tomography methods take.

Nothing is measured. Figures of httomolibgpu's methods follow from the records that come with
maxslices, and from the sequences of allocations that the tests hold; other packages' from such
sequences alone (`package_functions.py`, `record_sequences.py`). A GPU is not needed:

    python docs/scripts/field_memory.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from package_functions import FUNCTIONS
from tests.estimate.recorded_sequences import recorded, recorded_packages

from maxslices.core.units import format_bytes
from maxslices.estimate.peak_model import PeakModel
from maxslices.estimate.shipped_records import read_shipped
from maxslices.estimate.size_model import SizedTerm, SizeModel, SizeRecord

RECORDS = Path(__file__).parents[2] / "src" / "maxslices" / "httomo" / "records"
SLICES = {"projections": (2160, 2560), "sinograms": (1801, 2560), "slices": (2560, 2560)}
"""What a block may hold, and its dims in a scan of 1801 x 2160 x 2560."""
FEW, MANY = 64, 128
"""Blocks between which the bytes of one more slice are taken."""
SMALL = 1 / 200
"""Terms below this part of the peak are left out of a formula."""
LIBRARY = "httomolibgpu"
LIBRARY_FOLDERS = {"misc", "prep", "recon", "tomobar"}
"""Folders of its code and of the code it calls: made-up methods were recorded too."""

CUPY = {
    "gaussian": ("cupyx.scipy.ndimage.gaussian_filter", "sigma=(0, 2, 2)"),
    "median": ("cupyx.scipy.ndimage.median_filter", "size=(1, 3, 3)"),
    "uniform": ("cupyx.scipy.ndimage.uniform_filter", "size=(1, 5, 5)"),
    "fft2_filter": ("cupy.fft.fft2, a product, ifft2", ""),
    "rfft2_filter": ("cupy.fft.rfft2, a product, irfft2", ""),
}
"""Recorded CuPy calls of docs/scripts/outside_functions.py -> the functions they call."""


@dataclass(frozen=True)
class Row:
    """Memory of one method."""

    method: str
    slices: str
    """Key of `SLICES`."""
    dtype: str
    bytes_of: Callable[[int], int]
    known: str
    parameters: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of the table."""
        rows, columns = SLICES[self.slices]
        per_slice = (self.bytes_of(MANY) - self.bytes_of(FEW)) / (MANY - FEW)
        once = max(0, round(self.bytes_of(MANY) - MANY * per_slice))
        parameters = f" ({self.parameters})" if self.parameters else ""
        dtype = "" if self.dtype == "float32" else f", {self.dtype}"
        return (
            f"{self.method}{parameters}{dtype}",
            self.slices,
            f"{per_slice / (4 * rows * columns):.2f}",
            format_bytes(once) if once > SMALL * self.bytes_of(FEW) else "",
            self.known,
        )


def records() -> list[SizeRecord]:
    """Records of httomolibgpu's methods."""
    paths = sorted(RECORDS.glob(f"{LIBRARY}.*.json"))
    return [record for path in paths for record in read_shipped(path)]


def slices_of(record: SizeRecord) -> str | None:
    """Which slices a record has that belong to the scan."""
    known = ("projections",) if record.question.slice_dim == 0 else ("sinograms", "slices")
    return next((each for each in known if SLICES[each] in record.dims), None)


def recorded_rows() -> Iterator[Row]:
    """Methods with a record that came with maxslices."""
    for record in records():
        slices = slices_of(record)
        answer = record.at(SLICES[slices]) if slices else None
        if slices is None or answer is None:
            continue
        measured = next(size for size in record.sizes if size.dims == SLICES[slices])
        sized = None if measured.peaks else record.formulas
        most = max(n for n, _ in measured.measured)
        yield Row(
            method=record.question.name,
            slices=slices,
            dtype=record.question.dtype,
            bytes_of=answer.model.bytes,
            known=formula(sized, sized.at(SLICES[slices])) if sized else f"measured up to {most}",
        )


def sequence_rows(names: set[str]) -> Iterator[Row]:
    """Methods of which only sequences at this size were recorded."""
    for case in recorded():
        call = next(iter(case.calls.values()))
        slices = "sinograms" if call["slice_dim"] else "projections"
        angles, rows, columns = call["dims"]
        dims = (angles if call["slice_dim"] else rows, columns)
        module = {site[0].split("/")[0] for site in call["sequence"]["sites"][1:]}
        if case.name in names or SLICES[slices] != dims or not module & LIBRARY_FOLDERS:
            continue
        peaks = PeakModel.fit([case.observation(n) for n in sorted(case.calls)])
        yield Row(case.name, slices, case.dtype, peaks.rising, "", case.parameters)


def cupy_rows() -> Iterator[Row]:
    """CuPy's functions on projections, by sequences at this size."""
    cases = {case.name: case for case in recorded() if case.name in CUPY}
    for name, (called, parameters) in CUPY.items():
        case = cases[name]
        peaks = PeakModel.fit([case.observation(n) for n in sorted(case.calls)])
        yield Row(called, "projections", case.dtype, peaks.rising, "", parameters)


def package_rows() -> Iterator[Row]:
    """Functions of other packages, by sequences at this size and by what the pool did not see."""
    axes = {f"{each.package} {each.name}": each.slice_dim for each in FUNCTIONS}
    for case in recorded_packages():
        peaks = PeakModel.fit([case.observation(n) for n in sorted(case.calls)])
        outside = {n: call["outside"] for n, call in sorted(case.calls.items())}
        has_much = outside[FEW] > SMALL * peaks.rising(FEW)
        package, _, called = case.name.partition(" ")
        yield Row(
            method=f"{package}.{called}",
            slices="sinograms" if axes[case.name] else "projections",
            dtype=case.dtype,
            bytes_of=with_outside(peaks, outside),
            known=format_bytes(outside[FEW]) if has_much else "",
            parameters=case.parameters,
        )


def with_outside(peaks: PeakModel, outside: Mapping[int, int]) -> Callable[[int], int]:
    """Peak with memory outside the pool: that of the next call with as many slices or more.

    Beyond the largest call it grows as the slices do.
    """
    most = max(outside)

    def bytes_of(n: int) -> int:
        known = [taken for slices, taken in outside.items() if slices >= n]
        return peaks.rising(n) + (min(known) if known else outside[most] * n // most)

    return bytes_of


def formula(sized: SizeModel, peaks: PeakModel) -> str:
    """Sum of allocations at the peak of `FEW` slices: equal terms added, small ones omitted."""
    label = peaks.highest(FEW)
    terms = [sized.terms[i] for i in sized.moments[label]]
    counts: dict[str, int] = {}
    taken: dict[str, int] = {}
    for term, at in zip(terms, peaks.moments[label], strict=True):
        text = size_text(term)
        factor, _, rest = text.partition(" * ")
        if not factor.replace(",", "").isdigit():
            factor, rest = "1", text
        rest = rest or "1"
        counts[rest] = counts.get(rest, 0) + int(factor.replace(",", ""))
        taken[rest] = taken.get(rest, 0) + at.n_bytes(FEW, peaks.granule_bytes)
    least = SMALL * peaks.predicted(FEW)
    shown = {rest: count for rest, count in counts.items() if taken[rest] > least}
    parts = [
        rest if n == 1 else (f"{n:,}" if rest == "1" else f"{n:,} * {rest}")
        for rest, n in shown.items()
    ]
    text = " + ".join(parts).replace("columns*columns", "columns * columns")
    return re.sub(r"\b(r|c)(ows|olumns)\b", r"\1", text.replace(" * ", "·"))


def size_text(sized: SizedTerm) -> str:
    """Bytes of one of a line's arrays, as a formula in rows, columns and n."""
    term, start, step = sized[0], str(sized[1]), str(sized[2])
    if step == "0":
        return start
    count = term.size.counted.replace("k", str(term.size.k))
    grown = f"({step}) * {count}" if " + " in step else f"{step} * {count}"
    return grown if start == "0" else f"{start} + {grown}"


def tables() -> tuple[str, ...]:
    """Make the page's tables: httomolibgpu, then other packages and CuPy."""
    found = list(recorded_rows())
    found += sequence_rows({row.method for row in found})
    found.sort(key=lambda row: (row.method.lower(), row.slices, row.dtype))
    others = [*package_rows(), *cupy_rows()]
    return table(found, "bytes of n slices"), table(others, "outside the pool")


def table(rows: list[Row], last: str) -> str:
    """Rows as a table with this last column; methods of equal figures share a row."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for method, *figures in (row.cells for row in rows):
        merged.setdefault(tuple(figures), []).append(method)
    head = ["method", "slices", "x", "once", last]
    lines = [f"| {' | '.join(head)} |", f"|---|---{'|--:' * 2}|---|"]
    for figures, methods in merged.items():
        lines.append(f"| {'; '.join(methods)} | {' | '.join(figures)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(*tables(), sep="\n\n")
