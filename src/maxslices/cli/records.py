"""``maxslices records list|show|export|import|clear``."""

from __future__ import annotations

import json as json_text
import time
from typing import TYPE_CHECKING, Any

import click

from ..core.units import format_bytes
from ..errors import UnknownMethodError, UsageError
from .options import JSON, PATH

if TYPE_CHECKING:
    from ..estimate.recorded import Entry, Records


def _full_name(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """Convert MODULE:CALLABLE to the name that records use."""
    return name and name.replace(":", ".")


METHOD = click.Argument(
    ["method"], required=False, callback=_full_name, help="only records of this method"
)
FILE = click.Argument(["file"], type=PATH, help="file that `records export` writes")


@click.group(short_help="manage the measured memory of methods")
def records() -> None:
    """Manage the records of methods that were measured because they have no estimator.

    With exported records, another computer can plan for the device they were measured on.
    """


def _opened(file: str | None = None) -> Records:
    from ..estimate.recorded import Records

    if file == "":
        raise UsageError("the path of the records is empty: name a file")
    return Records()


def _entries(records: Records, method: str | None) -> list[Entry]:
    """Return the records of all methods or of one.

    Raises
    ------
    UnknownMethodError
        If the method has no records.
    """
    entries = records.entries(method)
    if method is not None and not entries and not _shipped(method):
        raise UnknownMethodError(
            f"no records of {method!r} in {records.folder}: `maxslices records list` lists all"
        )
    return entries


def _shipped(method: str | None) -> list[str]:
    """List the records that packages of methods contain, for all methods or for one."""
    from ..core.method_registry import registry
    from ..estimate.shipped_records import read_shipped

    texts = dict.fromkeys(
        f"{record.question.method}  {record.question.dtype}  {record.place.device}"
        for meta in registry
        if meta.records is not None and method in (None, meta.name, meta.full_name)
        for record in read_shipped(meta.records)
    )
    if not texts:
        return []
    return [f"{_counted(len(texts))} with packages of methods, for any card", *texts]


@records.command("list", params=[METHOD, JSON])
def list_records(method: str | None, json: bool) -> str:
    """List the records."""
    kept = _opened()
    entries = _entries(kept, method)
    if json:
        return json_text.dumps([_summary(entry) for entry in entries], indent=1)
    if not entries:
        return "\n".join([f"no records in {kept.folder}", *_shipped(method)])
    lines = [f"{_counted(len(entries))} in {kept.folder}"]
    for entry in entries:
        each = _summary(entry)
        lines.append(
            f"{each['date']}  {each['device']:<12}  {each['method']}  {each['slices']}"
            + (f"  {each['parameters']}" if each["parameters"] else "")
        )
    return "\n".join([*lines, *_shipped(method)])


def _summary(entry: Entry) -> dict[str, Any]:
    question, probe = entry.question, entry.probe
    dims = [*map(str, question.other_dims)]
    dims.insert(question.slice_dim, "n")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.time_s)),
        "device": entry.place.device,
        "method": question.method,
        "slices": f"{'x'.join(dims)} {question.dtype}",
        "parameters": " ".join(
            f"{name}={value}" for name, value in question.parameters.items() if value is not None
        ),
        "answer": probe.answer,
        "available_bytes": probe.available_bytes,
    }


@records.command()
@click.argument("method", callback=_full_name, help="a method, or MODULE:CALLABLE")
def show(method: str) -> str:
    """Show all measurements of a method."""
    from ..checking.measurement import explained_peak

    blocks = []
    for entry in _entries(_opened(), method):
        each, probe, place = _summary(entry), entry.probe, entry.place
        versions = ", ".join(f"{name} {text}" for name, text in place.libraries.items())
        lines = [
            f"{each['method']}  {each['slices']}  on {each['device']}",
            f"  measured    {each['date']}, in {probe.duration_s:.2f} s; {versions}",
            f"  parameters  {each['parameters'] or 'none'}",
            f"  code        {entry.question.package}, source {entry.question.source}",
            f"  answer      {probe.answer} slices in {format_bytes(probe.available_bytes)}"
            + ("" if probe.sure else " (at least: larger blocks were not measured)"),
        ]
        lines += [f"  note        {note}" for note in probe.notes]
        lines.append(f"  {'slices':>8} {'bytes':>16} {'kept':>14} {'outside':>14} {'seconds':>9}")
        lines += [
            f"  {rung.n_slices:>8} {rung.n_bytes:>16,} {rung.kept_bytes:>14,} "
            f"{rung.outside_bytes:>14,} {rung.duration_s:>9.4f}"
            for rung in probe.rungs
        ]
        lines += [f"  {line}" for line in explained_peak(probe.peaks, max(1, probe.answer))]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, "\n".join(_shipped(method))]).strip()


@records.command(params=[FILE])
@click.option("--method", metavar="METHOD", callback=_full_name, help="only records of this method")
def export(file: str, method: str | None) -> str:
    """Write records to a file for another computer. An existing file is replaced."""
    kept = _opened(file)
    if not _entries(kept, method):
        raise UsageError(f"no records in {kept.folder}, so there is nothing to write")
    return f"{_counted(kept.export(file, method))} written to {file}"


@records.command("import", params=[FILE])
def import_records(file: str) -> str:
    """Add the records of an exported file."""
    kept = _opened(file)
    n = kept.import_file(file)
    devices = sorted({entry.place.device for entry in kept.entries()})
    return f"{_counted(n)} added; the records are now of: {', '.join(devices) or 'none'}"


@records.command(params=[METHOD])
def clear(method: str | None) -> str:
    """Delete records, including damaged ones. Methods are then measured again."""
    kept = _opened()
    count = kept.clear(method)
    if not count:
        _entries(kept, method)
    return f"{_counted(count)} deleted"


def _counted(count: int) -> str:
    return f"{count} record{'s' if count != 1 else ''}"
