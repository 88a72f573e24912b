"""Add what `record_pipelines.py` measured to the records that come with maxslices.

    python docs/scripts/ship_records.py IN [FOLDER]

IN has ``sizes.json.gz``, ``same.json`` and ``further.json.gz``. FOLDER, by default
``src/maxslices/httomo/records``, has one file a method. A record there is replaced if IN has all
the sizes that it was made of: ``record_pipelines.py --before`` goes on from earlier ones. The table
says for each record how it answers for other sizes, and what it says of the calls in
``further.json.gz``, over what these took.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maxslices.estimate.recorded import Entry, read_entries
from maxslices.estimate.request_key import RequestKey, canonical
from maxslices.estimate.shipped_records import read_shipped, shipped_text
from maxslices.estimate.size_model import LEAST_SIZES, SizeRecord
from maxslices.system.plain_records import to_plain

FOLDER = Path(__file__).parents[2] / "src" / "maxslices" / "httomo" / "records"


@dataclass
class Group:
    """Entries that differ in their dims alone."""

    entries: list[Entry] = field(default_factory=list)
    further: list[Entry] = field(default_factory=list)


def read(path: Path) -> list[Entry]:
    """Entries of a packed file, with call sites named by the ends of their paths."""
    if not path.is_file():
        return []
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    for entry in content["entries"]:
        for site in entry["probe"]["peaks"]["sites"].values():
            site[0] = "/".join(site[0].split("/")[-2:])
    return read_entries(json.dumps(content))


def apart(question: RequestKey) -> str:
    """A request's key without its dims and code, as text."""
    return canonical(to_plain(replace(question, other_dims=(0, 0), source="", package="")))


def shipped_before(folder: Path) -> dict[str, SizeRecord]:
    """Records that are there."""
    records = [record for path in sorted(folder.glob("*.json")) for record in read_shipped(path)]
    return {apart(record.question): record for record in records}


def same_parameters(
    rows: Sequence[Mapping[str, Any]], question: RequestKey, before: SizeRecord | None
) -> dict[str, tuple[Any, ...]]:
    """Values of a method's parameters between which its memory was the same, now or before."""
    known = before.same if before is not None else {}
    found = {name: list(values) for name, values in known.items()}
    for row in rows:
        if row["method"] != question.method or not row["same"]:
            continue
        if row["dtype"] != question.dtype or row["parameters"] != question.parameters:
            continue
        for name, value in row["after"].items():
            for each in (row["before"][name], "FILE" if name.endswith("_path") else value):
                if each not in found.setdefault(name, []):
                    found[name].append(each)
    return {name: tuple(values) for name, values in found.items() if len(values) > 1}


def ratios(record: SizeRecord, entry: Entry) -> list[float] | None:
    """A record's answer over the measured peak, for each call; None if it does not answer."""
    answer = record.at(entry.question.other_dims)
    if answer is None:
        return None
    return [answer.model.bytes(n) / size for n, size in entry.probe.measured.items()]


def main() -> None:
    """Group, fit, write, and print the table."""
    source = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER
    same = json.loads((source / "same.json").read_text())
    groups: dict[str, Group] = {}
    for entry in read(source / "sizes.json.gz"):
        groups.setdefault(apart(entry.question), Group()).entries.append(entry)
    for entry in read(source / "further.json.gz"):
        groups.setdefault(apart(entry.question), Group()).further.append(entry)
    before = shipped_before(folder)
    made = dict(before)
    for key, group in groups.items():
        if not group.entries:
            print(f"no sizes: {group.further[0].question.method}")
            continue
        question = group.entries[0].question
        record = SizeRecord.of(group.entries, same_parameters(same, question, before.get(key)))
        name = f"{question.name} {question.dtype}"
        if record is None:
            print(f"{name:<44} left out: the dims of its result follow from nothing")
            continue
        if len(record.dims) < LEAST_SIZES:
            print(f"{name:<44} left out: {len(record.dims)} sizes tell nothing of others")
            continue
        lost = set(before[key].dims) - set(record.dims) if key in before else set()
        if lost:
            print(f"{name:<44} unchanged: it was made of more sizes, such as {min(lost)}")
            continue
        made[key] = record
        own = sum(bool(size.peaks) for size in record.sizes)
        shown = []
        for entry in group.further:
            found = ratios(record, entry)
            dims = "x".join(map(str, entry.question.other_dims))
            shown.append(
                f"{dims} " + ("none" if found is None else f"{min(found):.4f}-{max(found):.4f}")
            )
        print(f"{name:<44} {len(record.dims)} sizes, {own} for themselves; {'; '.join(shown)}"
              f"; same: {', '.join(record.same) or 'none'}")  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[SizeRecord]] = {}
    for record in made.values():
        files.setdefault(record.question.method, []).append(record)
    total = 0
    for method, records in files.items():
        text = shipped_text(records)
        total += len(text)
        (folder / f"{method}.json").write_text(text)
    print(f"{sum(map(len, files.values()))} records of {len(files)} methods, {total / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
