"""Records for other sizes of the detector, for planning without a GPU.

A package of methods names its file of records when it registers a method (``records=``). They are
valid for every card and any amount of memory, for the detectors that a `SizeRecord` covers, and for
parameter values that, by measurement, do not change the memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..core.method_meta import MethodMeta
from ..errors import StoreError
from ..system.plain_records import from_plain, json_text, to_plain
from .model_request import NoAnswerError, ResolvedModel
from .recorded import PARSE_ERRORS, Entry, Records, not_understood
from .request_key import Environment, RequestKey, canonical, libraries
from .size_model import Dims, SizeRecord, fit_formulas

FORMAT = 3
"""Version of the files."""


def read_shipped(path: Path) -> tuple[SizeRecord, ...]:
    """Read a file of records.

    Raises
    ------
    StoreError
        If it cannot be read, or is not a file of records.
    """
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise StoreError(f"{path}: records cannot be read: {error.strerror}") from None
    except PARSE_ERRORS as error:
        raise StoreError(not_understood(path, error)) from None


@lru_cache(maxsize=128)
def _read(path: Path, changed_ns: int) -> tuple[SizeRecord, ...]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != FORMAT:
        raise ValueError(f"version {content['format']!r}, and this is {FORMAT}")
    records = from_plain(tuple[SizeRecord, ...], content["records"], "records")
    for record in records:
        for dims in record.dims:
            record.at(dims)
    return records


def shipped_text(records: Sequence[SizeRecord]) -> str:
    """Text of a file of records."""
    return json_text({"format": FORMAT, "records": to_plain(records)}) + "\n"


def find_shipped(meta: MethodMeta, key: RequestKey) -> ResolvedModel:
    """Look up a request in the records that come with a method.

    The answer names the parameters that differ. A separate line names the device and the versions
    of the measurement.

    Raises
    ------
    NoAnswerError
        If no record matches; the message lists the records.
    StoreError
        If the file cannot be read.
    """
    if meta.records is None:
        raise NoAnswerError("nothing is recorded")
    reasons: dict[str, None] = {}
    for record in read_shipped(Path(meta.records)):
        differing = differences(record.question, key, record.same)
        if isinstance(differing, str):
            reasons[differing] = None
            continue
        answer = record.at(key.other_dims)
        if answer is not None:
            how = [answer.why, *differing]
            how += [] if record.is_of_any_card else ["memory outside CuPy's pool is that card's"]
            why = f"a record comes with it: {'; '.join(how)}\n{_origin(record, meta, key)}"
            return replace(answer, why=why)
        reasons[f"other dims: {_listed(record.dims)}"] = None
    available = f"the records that come with it are for {' or '.join(reasons)}"
    raise NoAnswerError(f"nothing is recorded ({available})")


def find_by_sizes(
    records: Records, key: RequestKey, suits: Callable[[Environment], bool]
) -> ResolvedModel | None:
    """Answer for other dims from the user's records at four sizes or more, or None if not covered.

    All records are from one device. Floating-point parameters may differ, such as a center of
    rotation, because they do not change sizes.
    """
    devices = dict[str, dict[Dims, Entry]]()
    for entry in records.entries(key.method):  # the last is the newest
        question, device = entry.question, entry.place.device
        is_of_code = (question.source, question.package) == (key.source, key.package)
        if is_of_code and suits(entry.place) and not differences(question, key, {}):
            devices.setdefault(device, {})[question.other_dims] = entry
    for device, newest in sorted(devices.items()):
        if fit_formulas({dims: entry.probe for dims, entry in newest.items()}) is None:
            continue
        record = SizeRecord.of(list(newest.values()))
        answer = record and record.at(key.other_dims)
        if answer:
            why = f"measured on {device}, at other sizes ({_listed(newest)})"
            return replace(answer, why=why)
    return None


def _listed(sizes: Iterable[Dims]) -> str:
    return ", ".join(f"{rows}x{columns}" for rows, columns in sizes)


def differences(
    question: RequestKey, key: RequestKey, same: Mapping[str, Sequence[Any]]
) -> list[str] | str:
    """Compare a record with a request, apart from dims and code.

    Floating-point parameters may differ, and parameters for whose values the memory was the `same`.

    Returns
    -------
    list of str or str
        Phrases for the parameters that differ without effect, or the difference that excludes the
        record.
    """
    if question.slice_dim != key.slice_dim:
        return f"slice dim {question.slice_dim}"
    if question.dtype != key.dtype:
        return f"dtype {question.dtype}"
    if question.side != key.side and not ("flats" in same and _dtypes(question) == _dtypes(key)):
        return ", ".join(f"{text} {name}" for name, text in question.side.items()) or "no flats"
    recorded, requested = question.parameters, key.parameters
    phrases = []
    for name in sorted({*recorded, *requested}):
        measured, value = recorded.get(name), requested.get(name)
        is_same = canonical(measured) == canonical(value)
        if is_same or (_is_no_size(measured) and _is_no_size(value)):
            continue
        if name not in same or not _lies_in(value, same[name]):
            return f"{name}={measured}"
        tried = " and ".join(map(str, same[name]))
        phrases.append(f"{name}={value} as it was the same with {tried}")
    return phrases


def _dtypes(key: RequestKey) -> dict[str, str]:
    """Dtypes of a key's flats and darks, without the numbers of frames."""
    return {name: text.partition(" ")[2] for name, text in key.side.items()}


def _is_no_size(value: Any) -> bool:
    """True for floating-point values, such as a center of rotation, and lists of them."""
    return isinstance(value, float) or (
        isinstance(value, list) and bool(value) and all(isinstance(each, float) for each in value)
    )


def _lies_in(value: Any, tried: Sequence[Any]) -> bool:
    """True for an integer within the range that was tried, and for other values of a tried type.

    An integer counts as a floating-point value if only such values were tried, as for a center of
    rotation.
    """
    whole = [each for each in tried if type(each) is int]
    if type(value) is int and whole:
        return min(whole) <= value <= max(whole)
    kind = float if type(value) is int else type(value)
    return any(type(each) is kind for each in tried)


def _origin(record: SizeRecord, meta: MethodMeta, key: RequestKey) -> str:
    """Device and versions of a record, and the versions here that differ."""
    place, question = record.place, record.question
    cupy = [f"cupy {place.libraries['cupy']}"] if "cupy" in place.libraries else []
    date = time.strftime("%Y-%m-%d", time.gmtime(record.time_s))
    text = f"measured on {place.device}, {date}, {', '.join([question.package, *cupy])}"
    now, versions = libraries(meta.function), place.libraries.items()
    changed = [name for name, version in versions if now.get(name, version) != version]
    here = [f"{name} {now[name]}" for name in changed]
    if key.source != question.source:
        here.insert(0, f"{key.package} with other code")
    return f"{text}; here are {', '.join(here)}" if here else text
