"""Records that answer for what was not measured: another card, or another size of the detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.size_model import LEAST_SIZES
from ..registry.source_hash import canonical
from .probe_result import Probe
from .record_files import Entry
from .recorded import Records
from .size_record import SizeRecord
from .sized_probe import SizedProbe


def _apart_from_dims(key: Mapping[str, Any]) -> dict[str, Any]:
    """A request's key without its dims and without floating-point parameters."""
    parameters = {k: v for k, v in key["parameters"].items() if not isinstance(v, float)}
    return {**key, "parameters": parameters, "other_dims": None}


def find_of_other_card(
    records: Records, key: Mapping[str, Any], environment: Mapping[str, Any]
) -> tuple[Probe, str] | None:
    """Look up a probe from another GPU that holds for this one, and that GPU's name.

    What a method asks CuPy's pool for is the same on every card, if its libraries are: the
    driver and the card's name may differ.
    """

    def libraries(place: Mapping[str, Any]) -> dict[str, Any]:
        return {name: v for name, v in place["libraries"].items() if name != "cuda driver"}

    def is_other(place: Mapping[str, Any]) -> bool:
        is_card = place["device"] not in ("cpu", environment["device"])
        return is_card and libraries(place) == libraries(environment)

    found = records.newest(key, is_other)
    return found if found is not None and found[0].is_of_any_card else None


def find_by_sizes(
    records: Records, key: Mapping[str, Any], *, device: str
) -> tuple[SizedProbe, str] | None:
    """Answer for dims that were not measured, from records at four other sizes or more.

    Parameters
    ----------
    records : Records
        Where to look.
    key : mapping
        From `fingerprint.request_key`. Floating-point parameters may differ, such as a center
        of rotation: they are not sizes.
    device : str
        Name of the device that the records are from.

    Returns
    -------
    (SizedProbe, str) or None
        The answer and the sizes it follows from; None if they do not tell it.
    """
    wanted, newest = canonical(_apart_from_dims(key)), dict[tuple[int, ...], Entry]()
    for entry in records.of_method(str(key["method"])):
        question = entry["question"]
        if (
            entry["place"]["device"].casefold() == device.casefold()
            and canonical(_apart_from_dims(question)) == wanted
        ):
            dims = tuple(question["other_dims"])
            if dims not in newest or entry["time_s"] >= newest[dims]["time_s"]:
                newest[dims] = entry
    made = SizeRecord.of(list(newest.values())) if len(newest) >= LEAST_SIZES else None
    rows, columns = key["other_dims"]
    answer = None if made is None else made.at((int(rows), int(columns)))
    if made is None or answer is None:
        return None
    return answer, ", ".join(f"{a}x{b}" for a, b in made.measured)
