"""Scans of discs with exact projections, in arrays, and runs of them."""

from __future__ import annotations

import logging

import numpy as np

import maxslices
from maxslices import ArrayScan
from tests.io import made_scans

CORRECT = ["dark_flat_field_correction", "minus_log"]
GOLDEN = 180 * 0.618033988749895
"""Degrees between two projections of a golden-angle scan."""


def line_integrals(degrees, columns=192, axis=None, reach=None, rows=4, scale=1.6):
    """Line integrals (angles, rows, columns); `reach` columns are half the field of view."""
    axis = (columns - 1) / 2 if axis is None else axis
    return made_scans.line_integrals(degrees, columns, axis, rows, reach, scale, shrink=0.03)


def scan(degrees, **shape):
    """Counts of a detector with noise, flats and darks, and the angles."""
    integrals = line_integrals(degrees, **shape)
    noise = np.random.default_rng(0)
    counts = 20000 * np.exp(-integrals) + 100 + noise.normal(0, 20, integrals.shape)
    sides = [level + noise.normal(0, 5, (5, *integrals.shape[1:])) for level in (20100, 100)]
    flats, darks = (np.rint(side).astype(np.uint16) for side in sides)
    data = np.rint(counts).clip(0, 65535).astype(np.uint16)
    return ArrayScan(data, flats=flats, darks=darks, angles=np.deg2rad(degrees))


def sides(source):
    """Flats and darks of a scan, as arrays."""
    n_rows = source.spec.shape[1]
    return {name: source.read_side(name, 0, 0, n_rows) for name in ("flats", "darks")}


def run(source, steps, **options):
    """Run steps on the CPU; a step is a name or (name, parameters)."""
    named = [
        {"method": step, "parameters": {}}
        if isinstance(step, str)
        else {"method": step[0], "parameters": step[1]}
        for step in steps
    ]
    return maxslices.run(source, named, device="cpu", **options)


def difference(result, reference, edge=30):
    """Relative RMS difference in the middle of slices (y, slices, x)."""
    middle = slice(edge, -edge)
    result, reference = (a[middle, :, middle] for a in (result, reference))
    return float(np.sqrt(((result - reference) ** 2).mean() / (reference**2).mean()))


def warnings_in(caplog):
    """Texts of the warnings that were logged."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
