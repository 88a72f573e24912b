"""Reading pipeline files, and refusing invalid ones in a line with the position."""

from __future__ import annotations

import math
import os
import re
from itertools import pairwise

import pytest

from maxslices import Pipeline, Registry, method
from maxslices.errors import PipelineError, UsageError
from maxslices.pipeline.write_pipeline import pipeline_text
from maxslices.pipeline.yaml_file import read_pipeline_text
from maxslices.pipeline.yaml_values import parse_parameters
from tests.planner.fakes import fakes
from tests.planner.ledgers import two

own = Registry()


@method("projection", calc_max_slices=two, registry=own)
def labelled(data, *, label: str = ""):
    """Return a copy."""
    return data.copy()


def read(tmp_path, text):
    path = tmp_path / "p.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Pipeline.from_file(path, fakes)


def without_columns(error: PipelineError) -> str:
    """Lines of a message, without columns and pointers."""
    lines = str(error).splitlines()
    kept = [line for line in lines if line.strip(" ^") and not line.startswith("    ")]
    return re.sub(r"(p\.yaml:\d+):\d+:", r"\1:", "\n".join(kept))


def test_a_name_that_two_versions_of_yaml_read_differently_is_one_fault(tmp_path):
    with pytest.raises(PipelineError) as caught:
        read(tmp_path, "- method: to_float\n  parameters:\n    yes: 0.0\n")
    assert "faults" not in str(caught.value)
    assert "object at" not in str(caught.value)


BOMB = "- method: to_float\n  parameters:\n    a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"    {b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefghij")
)

TWO_VERSIONS = ("010", "1:3", "1_000", "0b11", "1e-3", "1.5e3", "yes", "Off")
"""Unquoted text that YAML 1.1 and 1.2 read differently."""


@pytest.mark.parametrize("text", TWO_VERSIONS)
def test_values_that_two_versions_of_yaml_read_differently_are_refused(tmp_path, text):
    with pytest.raises(PipelineError, match=rf"p.yaml:3:13: '{text}' means different values"):
        read(tmp_path, f"- method: to_float\n  parameters:\n    factor: {text}\n")
    with pytest.raises(UsageError, match="means different values"):
        parse_parameters([f"factor={text}"])
    assert parse_parameters([f"factor='{text}'"]) == {"factor": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-0.5", -0.5),
        ("+3", 3),
        ("1.0e-3", 1e-3),
        ("0x1F", 31),
        (".inf", math.inf),
        ("~", None),
        ("", None),
        ("true", True),
        ("1990-01-01", "1990-01-01"),
        ("1-3", "1-3"),
        ("y", "y"),
        ("08", "08"),
        ("0o17", "0o17"),
    ],
)
def test_values_that_both_versions_read_alike_are_read(text, value):
    parsed = parse_parameters([f"factor={text}"])["factor"]
    assert (type(parsed), parsed) == (type(value), value)


@pytest.mark.parametrize("text", [*TWO_VERSIONS, "plain", "1", "", "true", "a: b"])
def test_text_that_looks_like_a_number_is_written_in_quotes(text):
    pipeline = Pipeline.from_steps([{"method": "labelled", "parameters": {"label": text}}], own)
    written = read_pipeline_text(pipeline_text(pipeline), "again")
    assert written[1].content["parameters"]["label"] == text


FAULTS = {
    "empty": ("", "p.yaml: the file is empty"),
    "no methods": ("[]", "p.yaml: the pipeline has no methods"),
    "loader alone": ("- method: standard_tomo", "the pipeline has no methods"),
    "mapping": ("method: to_float\n", "p.yaml:1: a pipeline must be a YAML list"),
    "two documents": (
        "- method: negate\n---\n- method: negate\n",
        "p.yaml:2: not valid YAML: a second document begins here",
    ),
    "indentation": ("- method: negate\n   parameters: {}\n", "p.yaml:2: not valid YAML"),
    "tab": (
        "- method: negate\n\tparameters: {}\n",
        "not valid YAML: YAML must be indented",
    ),
    "key twice deep": (
        "- method: to_float\n  parameters:\n    factor: {a: 1,\n     a: 2}\n",
        "p.yaml:4: the key 'a' is repeated",
    ),
    "yes as name": (
        "- method: to_float\n  parameters:\n    yes: 0.0\n",
        "p.yaml:3: 'yes' means different values in YAML 1.1",
    ),
    "list as name": ("- [a, b]: 1\n", "p.yaml:1: the key must be text"),
    "sweep of one value": (
        "- method: to_float\n  parameters:\n    factor: !Sweep 3\n",
        "p.yaml:3: !Sweep needs a list of values",
    ),
    "empty sweep": (
        "- method: to_float\n  parameters:\n    factor: !Sweep []\n",
        "p.yaml:3: a sweep needs at least one value",
    ),
    "sweep range without step": (
        "- method: to_float\n  parameters:\n    factor: !SweepRange {start: 3, stop: 5}\n",
        "p.yaml:3: !SweepRange needs start, stop and step, not start, stop",
    ),
    "sweep range of text": (
        "- method: to_float\n  parameters:\n    factor: !SweepRange {start: a, stop: 5, step: 1}\n",
        "p.yaml:3: start of a range must be a number, not 'a'",
    ),
    "sweep range without values": (
        "- method: to_float\n  parameters:\n    factor: !SweepRange {start: 5, stop: 3, step: 1}\n",
        "p.yaml:3: the range from 5 to 3 in steps of 1 has no values: stop is excluded",
    ),
    "sweep range of too many": (
        "- method: to_float\n  parameters:\n"
        "    factor: !SweepRange {start: 0, stop: 1.0e+12, step: 1.0e-3}\n",
        "p.yaml:3: the range from 0 to 1000000000000.0 in steps of 0.001 has more than 10,000",
    ),
    "sweep in a list": (
        "- method: to_float\n  parameters:\n    factor: [1, !Sweep [1, 2]]\n",
        "p.yaml:3: a sweep must be the whole value of one parameter of a method",
    ),
    "sweep as a name": ("- method: !Sweep [a, b]\n", "p.yaml:1: a sweep must be the whole value"),
    "sweep of no parameter": (
        "- method: negate\n  parameters:\n    factor: !Sweep [1, 2]\n",
        "p.yaml:3: negate has no parameter 'factor'",
    ),
    "python object": (
        "- method: !!python/object/apply:os.system ['touch /tmp/maxslices_was_here']\n",
        "p.yaml:1: the tag !!python/object/apply:os.system is not supported",
    ),
    "set": ("- method: negate\n  parameters: !!set {a, b}\n", "p.yaml:2: the tag !!set"),
    "false int": ("- method: negate\n  id: !!int a\n", "p.yaml:2: the tag !!int is not supported"),
    "long number": (
        "- method: to_float\n  parameters:\n    factor: " + "1" * 5000,
        "p.yaml:3: the number '111111111111111111111111111111'... is too large",
    ),
    "half a character": (
        '- method: to_float\n  parameters:\n    factor: "\\ud800"\n',
        "p.yaml:3: the character '\\ud800' is not allowed in text",
    ),
    "zero byte": (
        '- method: standard_tomo\n  parameters:\n    data_path: "a\\0b"\n',
        "p.yaml:3: the character '\\x00' is not allowed in text",
    ),
    "bomb": (BOMB, "its aliases expand to more than 100,000 values"),
    "own part": (
        "- method: to_float\n  parameters:\n    factor: &a\n      - *a\n",
        "p.yaml:3: an alias refers to a value that contains it",
    ),
    "undefined alias": ("- method: *nothing\n", "p.yaml:1: not valid YAML: found undefined alias"),
    "bad merge": ("- <<: 3\n  method: negate\n", "not valid YAML: expected a mapping"),
    "deep": ("[" * 5000, "nested too deeply"),
    "not text": (b"\x89HDF\r\n\x1a\n\xff\xfe", "it is not text in UTF-8"),
    "control characters": (b"- method: a\x00b\n", "not valid YAML"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_malformed_file_is_refused_with_its_line(tmp_path, case):
    text, expected = FAULTS[case]
    with pytest.raises(PipelineError) as caught:
        read(tmp_path, text)
    lines = without_columns(caught.value).splitlines()
    assert any(expected in line for line in lines)
    assert all(len(line) < 300 for line in lines)


def test_a_missing_file_is_named_with_the_nearest(tmp_path):
    (tmp_path / "pipeline.yaml").write_text("[]")
    with pytest.raises(PipelineError, match=r"does not exist; did you mean pipeline.yaml\?"):
        Pipeline.from_file(tmp_path / "pipelin.yaml", fakes)
    with pytest.raises(PipelineError, match=r"where\.yaml does not exist"):
        Pipeline.from_file(tmp_path / "no" / "where.yaml", fakes)


def test_a_broken_link_is_reported(tmp_path):
    (tmp_path / "pipeline.yaml").symlink_to("nowhere.yaml")
    with pytest.raises(PipelineError, match=r"is a link to nowhere\.yaml, which does not"):
        Pipeline.from_file(tmp_path / "pipeline.yaml", fakes)


def test_a_directory_is_not_a_pipeline_file(tmp_path):
    with pytest.raises(PipelineError, match="Is a directory"):
        Pipeline.from_file(tmp_path, fakes)


def test_anchors_aliases_and_merge_keys_are_read(tmp_path):
    pipeline = read(
        tmp_path,
        "- method: to_float\n  parameters: &shared\n    factor: 2.5\n"
        "- method: to_float\n  parameters: *shared\n"
        "- method: to_float\n  parameters:\n    <<: *shared\n    factor: 3.5\n",
    )
    assert [step.parameters["factor"] for step in pipeline.steps] == [2.5, 2.5, 3.5]


def test_dates_are_text(tmp_path):
    text = "- method: scaled_by\n  parameters: {centre: 1, note: 2020-13-45}\n"
    assert read(tmp_path, text).steps[0].parameters["note"] == "2020-13-45"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    assert read(tmp_path, b"\xef\xbb\xbf- method: negate\r\n  parameters: {}\r\n").steps


def test_a_silent_pipe_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr("maxslices.system.files.WAIT_S", 0.01)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "p.yaml").symlink_to("pipe")
    held = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(PipelineError, match="it was silent for"):
        Pipeline.from_file(tmp_path / "p.yaml", fakes)
    os.close(held)


def test_a_pipe_of_a_shell_is_read():
    reading, writing = os.pipe()
    os.write(writing, b"- method: negate")
    os.close(writing)
    assert len(Pipeline.from_file(f"/dev/fd/{reading}", fakes).steps) == 1
    os.close(reading)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "a\0b", "a\ud800b", "/", "p" * 300])
def test_other_paths_than_files_are_refused(path):
    with pytest.raises(PipelineError, match="pipeline file"):
        Pipeline.from_file(path, fakes)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path):
    with (tmp_path / "p.yaml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(PipelineError, match="it has more than 1,048,576 bytes"):
        Pipeline.from_file(tmp_path / "p.yaml", fakes)
