from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from maxslices.io import AngleRange, LoaderOptions, Preview, SideData, parse_loader


def parse(text: str) -> LoaderOptions:
    options, faults = parse_loader(yaml.safe_load(text))
    assert not faults
    return options


def test_a_loader_with_everything():
    options = parse(
        """
        data_path: /1-TempPlugin-tomo/data
        image_key_path: /entry1/tomo_entry/instrument/detector/image_key
        rotation_angles:
          user_defined: {start_angle: 0, stop_angle: 180, angles_total: 724}
        darks:
          file: darks.nxs
          data_path: /entry1/data
          image_key_path: /entry1/key
        flats:
          file: input_data
          data_path: /exchange/flats
        preview:
          detector_y: {start: 30, stop: 60}
          detector_x:
          angles: {stop: 100}
        """
    )
    assert options == LoaderOptions(
        data_path="/1-TempPlugin-tomo/data",
        image_key_path="/entry1/tomo_entry/instrument/detector/image_key",
        rotation_angles=AngleRange(0.0, 180.0, 724),
        darks=SideData(Path("darks.nxs"), "/entry1/data", "/entry1/key"),
        flats=SideData(None, "/exchange/flats"),
        preview=Preview(angles=(None, 100), detector_y=(30, 60)),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ("{data_path: auto, image_key_path: auto, rotation_angles: auto, flats: auto}", {}),
        ("{flats: ignore, darks: null, preview: null}", {"flats": "ignore"}),
        ("image_key_path: null", {"image_key_path": None}),
        ("{flats: {file: /a/b.h5}}", {"flats": SideData(Path("/a/b.h5"))}),
        ("rotation_angles: {data_path: /th}", {"rotation_angles": "/th"}),
        ("rotation_angles: /th", {"rotation_angles": "/th"}),
        ("rotation_angles: [0, 1.5, 3]", {"rotation_angles": [0.0, 1.5, 3.0]}),
    ],
)
def test_one_parameter(text, expected):
    assert parse(text) == LoaderOptions(**expected)


def test_both_ends_of_a_range_are_angles():
    np.testing.assert_array_equal(AngleRange(0, 180, 5).degrees(), [0, 45, 90, 135, 180])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data_pth: /a", "has no parameter 'data_pth'; did you mean data_path?"),
        ("zzz: 1", "has no parameter 'zzz'; it has: data_path, image_key_path"),
        ("data_path: 3", "data_path of the loader must be a path or 'auto', not 3"),
        ("rotation_angles: 3", "must be given as names and values"),
        ("rotation_angles: {data_path: a, user_defined: b}", "user_defined, not 2"),
        ("rotation_angles: {user: 1}", "no parameter 'user'; it has: data_path, user_defined"),
        ("rotation_angles: {user_defined: {start_angle: 0}}", "needs stop_angle, angles_total"),
        (
            "rotation_angles: {user_defined: {start_angle: a, stop_angle: 1, angles_total: 2}}",
            "start_angle must be a number of degrees, not 'a'",
        ),
        (
            "rotation_angles: {user_defined: {start_angle: 0, stop_angle: 1, angles_total: 0}}",
            "angles_total must be a whole number of at least 1, not 0",
        ),
        ("rotation_angles: [0, a]", "must be numbers, in degrees"),
        ("flats: {data_path: /a}", "flats of the loader need a file"),
        ("darks: none", "darks of the loader must be given as names and values"),
        ("preview: {angle: 1}", "no parameter 'angle'; did you mean angles"),
        ("preview: {detector_y: {start: middle}}", "must be a whole number, begin, mid or end"),
        ("preview: {detector_y: {start_offset: mid}}", "start_offset must be a whole number"),
        ("continuous_scan_subset: {start: 3}", "continuous_scan_subset of the loader needs stop"),
        ("preview: {detector_y: 1:30}", ", not 90 (YAML reads 1:3 as minutes and seconds, which"),
        ("preview: {angles: mid}", "must be given as names and values (start, start_off"),
    ],
)
def test_what_cannot_be_meant(text, message):
    _, faults = parse_loader(yaml.safe_load(text))
    assert [fault.text for fault in faults if message in fault.text]


def test_every_fault_of_a_loader_is_found_at_once_each_at_its_key():
    _, faults = parse_loader(
        yaml.safe_load(
            """
            data_pth: auto
            image_key_path: 3
            rotation_angles: {user_defined: {start_angle: a, stop_angle: 180, total: 3}}
            preview: {detector_y: {start: middle, stop_offset: 3.5}, detector_z: mid}
            flats: {data_path: 1}
            """
        )
    )
    assert {".".join(fault.keys) for fault in faults} == {
        "data_pth",
        "image_key_path",
        "rotation_angles.user_defined",
        "rotation_angles.user_defined.start_angle",
        "rotation_angles.user_defined.total",
        "preview.detector_y.start",
        "preview.detector_y.stop_offset",
        "preview.detector_z",
        "flats.file",
        "flats.data_path",
    }


def test_a_subset_of_a_continuous_scan_replaces_the_angles_of_the_preview():
    options = parse(
        "{continuous_scan_subset: {start: 7, stop: 9}, preview: {angles: {stop: 3}, "
        "detector_x: mid}}"
    )
    assert options.preview == Preview(angles=(7, 9), detector_x="mid")


def test_what_httomos_loader_leaves_out_means_what_it_means_there():
    options, _ = parse_loader({"data_path": "/d", "rotation_angles": "/a"}, as_httomo=True)
    assert (options.image_key_path, options.dummies) == (None, True)
    options, _ = parse_loader({"image_key_path": "auto"}, as_httomo=True)
    assert options.image_key_path == "auto"
