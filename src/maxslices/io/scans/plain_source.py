"""A scan in a file that has frames and no layout: an array, ``.npy``, TIFF."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..access import SIDE_NAMES, SideName
from ..frames.frames import Selection
from .angles import angles_option
from .frame_source import FrameSource
from .loader import LoaderOptions, SideData
from .side_data import dummies_of, frame_choices, open_side, side_option


def plain_source(
    name: str,
    data: Selection,
    options: LoaderOptions,
    *,
    sides: Mapping[SideName, Selection | None] | None = None,
    flats_after: Selection | None = None,
    angles: NDArray[np.float32] | None = None,
) -> FrameSource:
    """Make the source of a file without a layout.

    Parameters
    ----------
    name : str
        Name of the scan in messages.
    data : Selection
        The projections; closed if an error is raised.
    options : LoaderOptions
        Must not name paths within an HDF5 file.
    sides : mapping of str to Selection or None, optional
        Flats and darks, where the options leave them open.
    flats_after : Selection, optional
        Flats that were taken after the projections, likewise.
    angles : ndarray, optional
        Angles in radians, where the options leave them open.
    """
    with ExitStack() as opened:
        opened.callback(data.frames.close)
        keys = options.image_key_path not in ("auto", None)
        if options.data_path != "auto" or keys or options.beam_current is not None:
            raise SourceError(
                f"{name}: is not an HDF5 file, so it has no data_path, no image_key_path and no "
                "beam_current: leave them out"
            )
        found: dict[SideName, Selection] = {}
        for side in SIDE_NAMES:
            given, own = side_option(options, side), (sides or {}).get(side)
            if given == "auto" and own is not None:
                found[side] = own
            if isinstance(given, SideData):
                if given.file is None:
                    raise SourceError(
                        f"{name}: holds projections alone, so {side} cannot be in it: give "
                        "their file"
                    )
                found[side] = open_side(
                    side,
                    given.file,
                    given,
                    opened,
                    allow_missing=options.allow_missing_frames,
                )
        given_angles = angles_option(name, options, data)
        if isinstance(given_angles, str):
            raise SourceError(
                f"{name}: is not an HDF5 file, so the rotation angles cannot be at "
                f"{given_angles}: give them in degrees"
            )
        source = FrameSource(
            name,
            data,
            flats=found.get("flats"),
            darks=found.get("darks"),
            flats_after=flats_after if side_option(options, "flats") == "auto" else None,
            angles=angles if given_angles is None else given_angles,
            preview=options.preview,
            dummies=dummies_of(options),
            allow_missing_frames=options.allow_missing_frames,
            frames=frame_choices(options),
        )
        opened.pop_all()
    return source
