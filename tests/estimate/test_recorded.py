"""Records of probes are found again, unless they are stale, and errors never stop a run."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maxslices.cli.main import main
from maxslices.core.declaration import describe
from maxslices.errors import UsageError
from maxslices.estimate.recorded import FORMAT, Records
from maxslices.estimate.request_key import Environment, source_hash
from maxslices.system.cache_dir import FOLDER_VARIABLE, records_folder
from maxslices.system.plain_records import to_plain

from .record_cases import HERE, PROBE, answering, asked, blur

PLAIN_RUNG = to_plain(PROBE.rungs[0])


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records")


@pytest.mark.parametrize(
    "other",
    [
        {"size": 7},
        {"size": 5, "weights": [1.0]},
        {"size": 5, "slice_dim": 1},
        {"size": 5, "dims": (10, 21)},
        {"size": 5, "dtype": "uint16"},
        {"size": 5, "supplied": {"flats": np.ones((3, 10, 20), np.uint16)}},
    ],
    ids=str,
)
def test_another_question_is_not_answered(records, other):
    records.add(asked(size=5), HERE, PROBE)
    assert records.find(asked(**other), HERE) is None


def test_a_default_that_is_given_is_the_same_question(records):
    records.add(asked(), HERE, PROBE)
    assert records.find(asked(size=3), HERE).probe == PROBE
    assert records.find(asked(size=np.int64(3)), HERE).probe == PROBE
    assert records.find(asked(weights=()), HERE) is None


@pytest.mark.parametrize("what", ["device", "numpy", "new library"])
def test_another_device_or_version_is_not_taken(records, what):
    records.add(asked(), HERE, PROBE)
    other = replace(HERE, libraries=HERE.libraries | {what: "0.0"})
    if what == "device":
        other = replace(HERE, device="NVIDIA H200")
    assert records.find(asked(), other) is None


def test_changed_source_is_another_question_and_the_old_answer_goes(records, tmp_path, monkeypatch):
    (tmp_path / "labfilters").mkdir()
    module, helper = tmp_path / "labfilters" / "__init__.py", tmp_path / "labfilters" / "_h.py"
    module.write_text("def smooth(data):\n    return data\n")
    helper.write_text("SIZE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    from labfilters import smooth

    meta = describe(smooth, pattern="projection")
    records.add(asked(meta), HERE, PROBE)
    assert records.find(asked(meta), HERE).probe == PROBE
    helper.write_text("SIZE = 33\n")
    assert records.find(asked(meta), HERE) is None
    records.add(asked(meta), HERE, answering(3))
    assert [entry.probe.answer for entry in records.entries()] == [3]


def test_what_a_function_carries_with_it_is_part_of_its_source():
    def carrying(value):
        def f(data):
            return data * value

        return f

    hashes = {source_hash(carrying(value)) for value in (1, 2, None, [1], np.ones(3), blur)}
    hashes |= {source_hash(functools.partial(blur, size=n)) for n in (3, 5)}
    assert len(hashes) == 8
    assert source_hash(carrying(2)) == source_hash(carrying(2))


def test_a_device_that_is_not_here_is_asked_for_by_its_kind(records):
    for day, version in enumerate(("14.0", "14.2")):
        at = Environment("NVIDIA H200", {"cupy": version})
        records.add(asked(), at, answering(day))
    records.add(asked(), HERE, answering(100))
    assert {each.place.device for each in records.entries()} == {"NVIDIA H200", "cpu"}
    newest = records.newest(asked(), lambda place: place.device != "cpu")
    assert (newest.probe.answer, newest.place.device) == (1, "NVIDIA H200")
    assert records.newest(asked(size=9), lambda place: place.device != "cpu") is None
    assert records.newest(asked(), lambda place: place.device == "NVIDIA A100") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": "2", "entries": []}',
        f'{{"format": {FORMAT}, "entries": [{{}}]}}',
        "[" * 100_000,
        "\xff",
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_cannot_be_understood_is_left_out_and_replaced(records, text):
    records.add(asked(), HERE, PROBE)
    (file,) = records.folder.glob("*.json")
    file.write_bytes(text.encode("latin-1"))
    with pytest.warns(UserWarning, match=r"blur\.\w+\.json cannot be understood .*: left out"):
        assert records.find(asked(), HERE) is None
    assert file.read_bytes() == text.encode("latin-1")
    records.add(asked(), HERE, PROBE)
    assert records.find(asked(), HERE).probe == PROBE


@pytest.mark.parametrize("version", [1, FORMAT + 1])
def test_entries_of_another_version_are_no_answers_and_are_replaced(records, tmp_path, version):
    records.add(asked(), HERE, PROBE)
    (file,) = records.folder.glob("*.json")
    text = file.read_text().replace(f'"format": {FORMAT}', f'"format": {version}')
    file.write_text(text)
    assert records.find(asked(), HERE) is None
    assert records.entries() == []
    assert file.read_text() == text
    with pytest.raises(UsageError, match=rf"has version {version}, from another version"):
        records.import_file(file)
    records.add(asked(size=8), HERE, PROBE)
    assert [each.question.parameters["size"] for each in records.entries()] == [8]


@pytest.mark.parametrize(
    "damage",
    [
        {"question": {"other_dims": 3}},
        {"question": {"other_dims": None}},
        {"question": {"parameters": []}},
        {"question": {"slice_dim": 2}},
        {"place": {"libraries": []}},
        {"probe": {"sure": None}, "time_s": 1e300},
        {"probe": {"kept": [[1, 1e999]]}},
        {"probe": {"rungs": [{}]}},
        {"probe": {"available_bytes": None}},
        {"probe": {"duration_s": "long"}},
        {"probe": {"rungs": [PLAIN_RUNG | {"n_bytes": None}]}},
        {"probe": {"rungs": [PLAIN_RUNG | {"n_bytes": -7}]}},
        {"probe": {"rungs": [PLAIN_RUNG | {"n_slices": 0}]}},
        {"probe": {"peaks": to_plain(PROBE.peaks) | {"moments": {}}}},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("default")
def test_a_damaged_entry_is_never_a_traceback(records, damage, command, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(records.folder))
    records.add(asked(), HERE, PROBE)
    (file,) = records.folder.glob("*.json")
    content = json.loads(file.read_text())
    (entry,) = content["entries"]
    for name, value in damage.items():
        entry[name] = entry[name] | value if isinstance(value, dict) else value
    text = json.dumps(content)
    for arguments in (["list"], ["show", "blur"], ["export", file.parent / "x"]):
        file.write_text(text)
        status, _, errors = command(*arguments)
        assert (status == 0) == (arguments[0] == "list")
        assert "Traceback" not in errors
        assert "cannot be understood" in errors
        assert file.read_text() == text
    status, _, errors = command("import", file)
    assert status == 2
    assert "is not a file of records" in errors
    assert command("clear", "blur") == (0, "1 record deleted\n", "")
    assert not file.exists()


@pytest.mark.filterwarnings("default")
def test_files_of_somebody_else_stay_as_they_are(command, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "package.json").write_text('{"name": "other"}')
    (tmp_path / "some.settings.json").write_text("[1, 2]")
    for action in ("list", "clear"):
        status, _, errors = command(action)
        assert status == 0
        assert errors.count("cannot be understood") == 2
    assert {path.name for path in tmp_path.iterdir()} >= {"package.json", "some.settings.json"}


def test_a_folder_that_cannot_be_written_to_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    records = Records(tmp_path / "file" / "records")
    with pytest.warns(UserWarning, match=f"cannot be kept there.*{FOLDER_VARIABLE}"):
        records.add(asked(), HERE, PROBE)
    assert records.find(asked(), HERE) is None


WRITER = """
import sys
from tests.estimate.record_cases import HERE, PROBE, asked
from maxslices.estimate.recorded import Records
records = Records(sys.argv[1])
for n in range(25):
    records.add(asked(size=1000 * int(sys.argv[2]) + n), HERE, PROBE)
    assert records.find(asked(size=1000 * int(sys.argv[2]) + n), HERE).probe == PROBE
"""


def test_a_folder_that_cannot_be_read_is_told_in_a_line(monkeypatch, capsys):
    monkeypatch.setenv("MAXSLICES_RECORDS", "x" * 300)  # no file system has such a name
    for command in (["records", "list"], ["methods", "minus_log"]):
        assert main(command) == 1
        assert "be read: File name too long; set MAXSLICES_RECORDS" in capsys.readouterr().err


def test_processes_at_once_lose_nothing(records, pytestconfig):
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WRITER, str(records.folder), str(i)],
            cwd=pytestconfig.rootpath,
        )
        for i in range(3)
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    sizes = {entry.question.parameters["size"] for entry in records.entries()}
    assert sizes == {1000 * i + n for i in range(3) for n in range(25)}
    assert len(list(records.folder.iterdir())) == 75


def test_exported_records_are_used_elsewhere_and_the_newer_stays(records, tmp_path):
    records.add(asked(), HERE, PROBE)
    records.add(asked(size=4), HERE, PROBE)
    assert records.export(tmp_path / "all.json") == 2
    elsewhere = Records(tmp_path / "elsewhere")
    assert elsewhere.import_file(tmp_path / "all.json") == 2
    assert elsewhere.find(asked(), HERE).probe == PROBE
    newer = answering(99)
    elsewhere.add(asked(), HERE, newer)
    elsewhere.import_file(tmp_path / "all.json")
    assert elsewhere.find(asked(), HERE).probe == newer
    assert len(elsewhere.entries()) == 2


@pytest.mark.parametrize(
    "text", [None, "{}", f'{{"format": {FORMAT}, "entries": [{{"question": 3}}]}}']
)
def test_a_file_that_is_none_is_not_imported(records, tmp_path, text):
    if text is not None:
        (tmp_path / "some.json").write_text(text)
    with pytest.raises(UsageError, match=r"cannot be read|is not a file of records"):
        records.import_file(tmp_path / "some.json")
    assert records.entries() == []


def test_a_name_of_a_method_in_an_imported_file_cannot_lead_out_of_the_folder(records, tmp_path):
    records.add(asked(), HERE, PROBE)
    records.export(tmp_path / "all.json")
    content = json.loads((tmp_path / "all.json").read_text())
    content["entries"][0]["question"]["method"] = "../../evil"
    (tmp_path / "all.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is not the name of a method"):
        records.import_file(tmp_path / "all.json")


def test_the_folder_is_the_environments_or_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert records_folder() == tmp_path
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert records_folder() == tmp_path / "cache" / "maxslices" / "records"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert records_folder() == tmp_path / ".cache" / "maxslices" / "records"


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "records"))

    def run(*arguments):
        status = main(["records", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_the_command_lists_shows_and_clears(command):
    assert "no records in" in command("list")[1]
    records = Records()
    records.add(asked(size=5), HERE, PROBE)
    status, text, _ = command("list")
    assert status == 0
    assert "cpu           lab.filters.blur  nx10x20 float32  size=5" in text
    listed = json.loads(command("list", "blur", "--json")[1])
    assert [each["answer"] for each in listed] == [13]
    status, text, _ = command("show", "blur")
    assert status == 0
    for part in ("13 slices in 1.00 kB", "a note", f"numpy {np.__version__}", "163"):
        assert part in text
    assert command("clear", "blur")[1] == "1 record deleted\n"
    assert command("clear")[1] == "0 records deleted\n"
    for arguments in (["show"], ["list"], ["clear"], ["export", "never.json", "--method"]):
        status, _, text = command(*arguments, "blur")
        assert status == 1
        assert "no records of 'blur'" in text
    status, _, text = command("export", "never.json")
    assert status == 2
    assert "nothing to write" in text
    assert not Path("never.json").exists()


def test_the_command_exports_and_imports(command, tmp_path, monkeypatch):
    Records().add(asked(), HERE, PROBE)
    file = tmp_path / "all.json"
    assert command("export", file)[1] == f"1 record written to {file}\n"
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "other"))
    assert command("import", file)[1] == "1 record added; the records are now of: cpu\n"
    assert "1 record in" in command("list")[1]
    status, _, text = command("export", tmp_path)
    assert (status, text) == (
        1,
        f"maxslices: error: {tmp_path} is a folder: name a file for the records\n",
    )


def test_a_method_is_the_same_before_its_module_is_imported_and_after(tmp_path, monkeypatch):
    folder = tmp_path / "lazily_imported"
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '1.2'")
    (folder / "helpers.py").write_text("factor = 2")
    file = folder / "methods.py"
    file.write_text("def double(data):\n    return data * 2\n")
    namespace = {"__name__": "lazily_imported.methods"}  # as a package's source may be looked at
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    before = source_hash(namespace["double"])
    monkeypatch.syspath_prepend(tmp_path)
    imported = importlib.import_module("lazily_imported.methods").double
    assert before == source_hash(namespace["double"]) == source_hash(imported)
    (folder / "helpers.py").write_text("factor = 30")
    assert source_hash(namespace["double"]) != before


def test_a_record_of_a_script_does_not_serve_when_a_module_that_it_imports_has_changed(
    tmp_path, monkeypatch
):
    (tmp_path / "lab_constants.py").write_text("SIZE = 3\n")
    helper = tmp_path / "lab_helpers.py"
    helper.write_text("import lab_constants\ndef double(data): return data * 2\n")
    unrelated = tmp_path / "lab_unrelated.py"
    unrelated.write_text("")
    (tmp_path / "lab_script.py").write_text(
        "from lab_helpers import double\ndef f(data): return double(data)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    hashes = [source_hash(importlib.import_module("lab_script").f)]
    for file in (helper, tmp_path / "lab_constants.py", unrelated):
        with file.open("a") as added:
            added.write("more = 1\n")
        hashes.append(source_hash(importlib.import_module("lab_script").f))
    assert len(set(hashes)) == 3
    assert hashes[2] == hashes[3]


def test_what_a_function_of_a_notebook_names_is_part_of_its_source():
    space: dict = {"__name__": "typed_in"}
    exec("def f(data): return [inner(part, SIZE) for part in data]", space)
    exec("def inner(data, size): return Kernel().run(data)", space)
    hashes = []
    for cell in (
        "SIZE = 3",
        "class Kernel:\n    def run(self, data): return data",
        "class Kernel:\n    def run(self, data): return data * 2",
        "SIZE = 5",
        "def inner(data, size): return data * size",
    ):
        exec(cell, space)
        hashes.append(source_hash(space["f"]))
    assert len(set(hashes)) == 5
    exec("unnamed = 1", space)
    assert source_hash(space["f"]) == hashes[-1]


def test_a_function_that_names_itself_has_a_source():
    space: dict = {"__name__": "typed_in"}
    exec("def f(data): return other(data)\ndef other(data): return f(data)", space)
    assert source_hash(space["f"]) == source_hash(space["f"])
