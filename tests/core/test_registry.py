from __future__ import annotations

import importlib
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from maxslices import Registry, method
from maxslices.errors import RegistrationError, UnknownMethodError


def minus_log(data): ...


def median_filter(data, size: int = 3): ...


@pytest.fixture
def filled():
    filled = Registry()
    filled.register(minus_log, pattern="all", module="first.lab")
    filled.register(minus_log, pattern="all", module="second.lab")
    filled.register(median_filter, pattern="projection", module="first.lab")
    return filled


def test_a_registry_is_a_collection(filled):
    assert len(filled) == 3
    assert [meta.full_name for meta in filled] == [
        "first.lab.median_filter",
        "first.lab.minus_log",
        "second.lab.minus_log",
    ]
    assert "median_filter" in filled
    assert "first.lab.minus_log" in filled
    assert "minus_log" not in filled  # which of the two?
    assert "other" not in filled
    assert 5 not in filled
    assert filled["median_filter"] is filled.get("median_filter", "first.lab")


def test_methods_with_the_same_name_need_their_module(filled):
    with pytest.raises(
        UnknownMethodError,
        match=r"several methods are named 'minus_log': "
        r"write first\.lab\.minus_log or second\.lab\.minus_log",
    ):
        filled["minus_log"]
    assert filled["second.lab.minus_log"].module == "second.lab"
    assert filled.get("minus_log", "second.lab").module == "second.lab"


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("medianfilter", None, "'medianfilter'; did you mean median_filter?"),
        ("first.lab.medianfilter", None, "did you mean median_filter?"),
        ("Minus_Log", None, "did you mean minus_log?"),
        ("xyz", None, "`maxslices methods` lists the methods of installed packages"),
        (
            "median_filter",
            "other.lab",
            "'other.lab' has no method 'median_filter', but first.lab has",
        ),
        ("xyz", "other.lab", "unknown method 'other.lab.xyz'"),
        ("xyz", "first.lab", "'first.lab.xyz'; first.lab has: median_filter, minus_log"),
        ("", None, "unknown method ''"),
    ],
)
def test_an_unknown_name_is_refused_with_similar_names(filled, name, module, message):
    with pytest.raises(UnknownMethodError) as caught:
        filled.get(name, module)
    assert message in str(caught.value)


def test_an_empty_registry_says_that_nothing_is_installed():
    with pytest.raises(UnknownMethodError, match="pip install maxslices-methods"):
        Registry()["minus_log"]


def test_a_function_of_another_package_is_registered_unchanged():
    from scipy.ndimage import gaussian_filter

    own = Registry()
    before = set(vars(gaussian_filter))
    meta = own.register(gaussian_filter, pattern="projection", halo=3, module="smoothing")
    assert meta.full_name == "smoothing.gaussian_filter"
    assert "sigma" in meta.parameters
    assert meta.function is gaussian_filter
    assert set(vars(gaussian_filter)) == before


def test_a_duplicate_names_both_places():
    own = Registry()
    own.register(minus_log, pattern="all")
    with pytest.raises(
        RegistrationError, match=r"minus_log is registered twice: at .*py:\d+ and at .*py:\d+"
    ):
        own.register(minus_log, pattern="projection")
    assert own["minus_log"].pattern == "all"


MODULE = """
from maxslices import method
from {tests} import OWN

@method({pattern!r}, registry=OWN)
def reloaded(data): ...
"""
OWN = Registry()


@pytest.fixture
def lab_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys.modules[__name__], "OWN", Registry())

    def write(pattern: str, before: str = "", after: str = "") -> None:
        source = before + MODULE.format(tests=__name__, pattern=pattern) + after
        (tmp_path / "reloaded_lab.py").write_text(source)
        importlib.invalidate_caches()

    yield write
    sys.modules.pop("reloaded_lab", None)


def test_a_reloaded_module_replaces_its_methods(lab_module):
    lab_module("all")
    module = importlib.import_module("reloaded_lab")
    importlib.reload(module)
    assert OWN["reloaded"].pattern == "all"
    lab_module("sinogram", before="# a line more\n\n")
    importlib.reload(module)
    assert OWN["reloaded"].pattern == "sinogram"
    assert OWN["reloaded"].function is module.reloaded
    assert len(OWN) == 1


def test_two_methods_of_one_name_in_one_module_are_an_error(lab_module):
    lab_module("all", after='\n@method("all", registry=OWN)\ndef reloaded(data, other): ...\n')
    with pytest.raises(RegistrationError, match="reloaded is registered twice"):
        importlib.import_module("reloaded_lab")


def test_cells_of_a_notebook_may_be_edited_and_run_again():
    own = Registry()
    cell = '@method("all", registry=own)\ndef cell_method(data): ...'
    for name in ("<cell 1>", "<cell 2>"):
        names = {"__name__": "__main__", "method": method, "own": own}
        exec(compile("\n" * len(names) + cell, name, "exec"), names)
    assert len(own) == 1


# Entry points


class EntryPoint(SimpleNamespace):
    value = "lab"

    @property
    def dist(self):
        return SimpleNamespace(name=self.name)

    def load(self):
        return self.action()


@pytest.fixture
def entry_points(monkeypatch):
    def install(**actions):
        installed = [EntryPoint(name=name, action=action) for name, action in actions.items()]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: installed)

    return install


def test_entry_points_are_loaded_once_on_first_use(entry_points):
    loaded = []
    entry_points(lab=lambda: loaded.append("lab"))
    own = Registry("some.group")
    assert loaded == []
    assert len(own) == 0
    assert "x" not in own
    assert list(own) == []
    assert loaded == ["lab"]


@pytest.mark.parametrize("error", [OSError("no such library"), SystemExit(3)])
@pytest.mark.parametrize("registers_first", [True, False])
def test_a_package_that_fails_is_named_and_the_others_are_there(
    entry_points, error, registers_first
):
    own = Registry("some.group")

    def fail():
        if registers_first:
            own.register(median_filter, pattern="all")
        raise error

    entry_points(bad=fail, good=lambda: own.register(minus_log, pattern="all"))
    warning = (
        "^bad may lack methods other than median_filter"
        if registers_first
        else "methods of bad are"
    )
    with pytest.warns(UserWarning, match=rf"{warning}.*{type(error).__name__}: {error}"):
        assert len(own) == 1 + registers_first
    with pytest.raises(UnknownMethodError, match=rf"'xyz'.*{warning.removeprefix('^')}"):
        own["xyz"]


def test_a_package_may_ask_for_methods_while_it_is_imported(entry_points):
    own = Registry("some.group")
    entry_points(lab=lambda: list(own))
    assert list(own) == []


def test_loading_that_is_interrupted_starts_again(entry_points):
    own = Registry("some.group")

    def interrupted():
        raise KeyboardInterrupt

    entry_points(lab=interrupted)
    with pytest.raises(KeyboardInterrupt):
        len(own)
    entry_points(lab=lambda: own.register(minus_log, pattern="all"))
    assert len(own) == 1


def test_threads_wait_for_the_one_that_loads(entry_points):
    own = Registry("some.group")
    loads = []

    def slow():
        loads.append(1)
        time.sleep(0.1)
        own.register(minus_log, pattern="all")

    entry_points(lab=slow)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(len(own))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == [1] * 8
    assert loads == [1]
