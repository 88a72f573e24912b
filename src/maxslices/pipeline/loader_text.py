"""Description of the loader step ``standard_tomo`` for users. Tests check each line of its YAML."""

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

Select how a scan is read: the paths of its frames, flats, darks and angles, and the part to read.

It is the first step of a pipeline, and may be left out for files of Diamond, the ESRF and the APS,
and for any NXtomo entry. Name here what `maxslices info SCAN` does not find.

In a pipeline file, with every parameter:

{loader}
Bounds of a preview are indices, or begin, mid or end, with a start_offset and a stop_offset.
On the command line --rows, --columns and --angles replace them: --rows mid,
--columns mid-500:mid+500, --angles ::2.

Flats, darks or angles in other files:

{other_files}
`flats: {{frames: [0, 1, 3]}}` or `flats: {{frames: "all but 2"}}` takes some flats,
counted from 0.
A `file` is HDF5, .npy, a TIFF or a folder of TIFFs, or `input_data` for the scan itself. Without
a data_path, the flats or darks of the file are used, or all of its frames if it has no image key.
An image_key_path selects among them. Angles are in HDF5, or in a text file in degrees:
{{file: angles.txt}}. Paths are relative to the working directory."""


def loader_text() -> str:
    """Description of the step."""
    loader, other_files = (
        "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
        for text in (LOADER_YAML, OTHER_FILES_YAML)
    )
    return _TEXT.format(loader=loader, other_files=other_files)
