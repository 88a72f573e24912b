"""The loader step ``standard_tomo``, described for people; every line of YAML in it is checked."""

from __future__ import annotations

LOADER_YAML = """\
- method: standard_tomo
  parameters:                            # all of them may be left out
    data_path: auto                      # the frames in an HDF5 file: auto, or a path
    image_key_path: auto                 # kind of each frame (0 projection, 1 flat, 2 dark):
                                         #   auto, a path, or null: all are projections
    rotation_angles: auto                # auto; {data_path: PATH};
                                         #   {user_defined: {start_angle: 0, stop_angle: 180,
                                         #   angles_total: 1801}}; or a list of degrees
    flats: auto                          # auto; ignore (a frame of ones); or a file, see below
    darks: auto                          # auto; ignore (a frame of zeros); or a file
    beam_current: null                   # null; auto or a path: flats are scaled by it
    preview:                             # part of the scan to read; the stop is excluded
      angles: {start: 0, stop: end, step: 2}   # frames as stored, flats and darks included
      detector_y: mid                    # the middle three rows, two of an odd number
      detector_x: {start: mid, start_offset: -500, stop: mid, stop_offset: 500}
"""
"""The step with every parameter."""
OTHER_FILES_YAML = """\
- method: standard_tomo
  parameters:
    flats: {file: flats.nxs, data_path: /entry1/tomo_entry/data/data}
    darks: {file: darks, data_path: auto}          # a folder of TIFFs
    rotation_angles: {file: angles.nxs, data_path: /entry1/tomo_entry/data/rotation_angle}
"""
"""The step where flats and darks are in other files."""
_TEXT = """\
standard_tomo

Say how a scan is read: where its frames, flats, darks and angles are, and which part of it.

It is a pipeline's first step, and may be left out: files of Diamond, the ESRF and the APS, and any
NXtomo entry, are recognised. What `maxslices info SCAN` does not find is named here.

In a pipeline file, with every parameter:

{loader}
Bounds of a preview are indices, or begin, mid or end, with a start_offset and a stop_offset.
On the command line --rows, --columns and --angles stand in their place: --rows mid,
--columns mid-500:mid+500, --angles ::2.

Flats, darks or angles in other files:

{others}
`flats: {{frames: [0, 1, 3]}}` or `flats: {{frames: "all but 2"}}` takes some flats,
counted from 0.
A `file` is HDF5, .npy, a TIFF or a folder of TIFFs; `input_data` is the scan itself. Without a
data_path its own flats or darks are taken, or all frames of a file without an image key; an
image_key_path selects among them. Angles are in HDF5, or in a text
file in degrees: {{file: angles.txt}}. Relative paths count from where maxslices is run."""


def loader_text() -> str:
    """Describe the step."""
    loader, others = (
        "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
        for text in (LOADER_YAML, OTHER_FILES_YAML)
    )
    return _TEXT.format(loader=loader, others=others)
