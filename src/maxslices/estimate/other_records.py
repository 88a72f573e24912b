"""Records that answer for what was not measured: another card, or another size of the detector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..model.size_model import LEAST_SIZES, Dims
from .choice import Choice
from .probe_result import Probe
from .record_files import Entry
from .recorded import Records
from .shipped_records import differences
from .size_record import SizeRecord


def find_of_other_card(
    records: Records, key: Mapping[str, Any], environment: Mapping[str, Any]
) -> tuple[Probe, str] | None:
    """Look up a probe from another GPU that holds for this one, and where it is from.

    What a method asks CuPy's pool for is the same on every card, if its libraries are: the
    driver and the card's name may differ.
    """

    def libraries(place: Mapping[str, Any]) -> dict[str, Any]:
        return {name: v for name, v in place["libraries"].items() if name != "cuda driver"}

    def is_other(place: Mapping[str, Any]) -> bool:
        is_card = place["device"] not in ("cpu", environment["device"])
        return is_card and libraries(place) == libraries(environment)

    found = records.newest(key, is_other)
    if found is None or not found[0].is_of_any_card:
        return None
    return found[0], f"{found[1]}, as on any card"


def find_by_sizes(
    records: Records, key: Mapping[str, Any], suits: Callable[[Mapping[str, Any]], bool]
) -> Choice | None:
    """Answer for dims that were not measured, from records at four other sizes or more.

    Parameters
    ----------
    records : Records
        Where to look.
    key : mapping
        From `fingerprint.request_key`. Floating-point parameters may differ, such as a center
        of rotation: they are not sizes.
    suits : callable
        ``suits(place)``, as for `Records.newest`. Records of one device answer together.

    Returns
    -------
    Choice or None
        None if they do not tell it.
    """
    devices = dict[str, dict[Dims, Entry]]()
    for entry in records.of_method(str(key["method"])):  # the newest is the last
        question, place = entry["question"], entry["place"]
        is_of_code = all(question[name] == key[name] for name in ("source", "package"))
        if is_of_code and suits(place) and not differences(question, key, {}):
            sizes = devices.setdefault(place["device"], {})
            sizes[tuple(question["other_dims"])] = entry
    for device, newest in sorted(devices.items()):
        made = SizeRecord.of(list(newest.values())) if len(newest) >= LEAST_SIZES else None
        answer = None if made is None else made.at(tuple(key["other_dims"]))
        if made is not None and answer is not None:
            dims = ", ".join(f"{a}x{b}" for a, b in made.measured)
            return replace(answer, why=f"measured on {device}, at other sizes ({dims})")
    return None
