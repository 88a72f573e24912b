"""``maxslices measure``: figures, JSON and errors."""

import json
import re
import sys
from importlib.util import find_spec

import pytest

from maxslices.cli.main import main

BLOCK = ["median_filter", "--shape", "50x40x41", "--device", "cpu"]
NO_DEVICE = "no device cuda:99" if find_spec("cupy") else "a GPU needs CuPy"


def test_estimate_beside_measured(capsys):
    assert main(["measure", *BLOCK, "--dtype", "uint16", "-p", "kernel_size=5"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ok: maxslices_methods.corr.median_filter: estimated ")
    assert "50x40x41 uint16, slices along dim 0, on cpu" in text
    assert "kernel_size=5" in text
    assert "alive at the peak" in text
    assert re.search(r"the input\n", text)
    assert "NumPy: " in text


def test_json(capsys):
    assert main(["measure", *BLOCK, "--json", "--slice-dim", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["slices"] == 40
    assert report["slice_dim"] == 1
    assert report["verdict"] == "ok"
    assert report["meters"]["numpy_bytes"] >= report["peak_bytes"] * 0.99
    assert report["meters"]["cupy_in_use_bytes"] is None


OWN = """
import numpy as np
from maxslices import from_ledger, method

@from_ledger
def half(m, shape, dtype):
    m.alloc(shape, dtype)

@method("all", calc_max_slices=half)
def negative(data):
    return -data

def faulty(data, *, depth: int = 1):
    if depth < 0:
        return -data
    if depth:
        return faulty(data, depth=depth - 1)
    return np.concatenate([data, data[0]])

class Own(BaseException):
    pass

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def own_base(data):
    raise Own("stopped")

def silent(data):
    raise Silent

def long_and_red(data):
    raise ValueError("\x1b[31m" + 5000 * "x")

def no_memory(data):
    raise MemoryError

@from_ledger
def both(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

@method("all", calc_max_slices=both)
def talks(data):
    print("frame 0")
    return data * 2

def doubled(data):
    twice = np.add(data, data)
    return np.sqrt(twice)
"""


@pytest.fixture
def own_methods(tmp_path, monkeypatch):
    """A module with methods in the current folder, which is not on Python's path."""
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("own_methods", None)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_estimate_is_an_error_that_is_printed_all_the_same(capsys, own_methods, as_json):
    arguments = ["own_methods:negative", "--shape", "60x40x41", "--device", "cpu"]
    assert main(["measure", *arguments, *["--json"][:as_json]]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("maxslices: error: UNDERESTIMATE (would run out of memory): own_methods")
    assert err.count("\n") == 1
    if as_json:
        assert json.loads(out)["verdict"] == "UNDERESTIMATE"
    else:
        assert "alive at the peak" in out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_base", r"raised RuntimeError: it raised Own: stopped \(own_methods\.py:\d+\)\n"),
        ("silent", r"raised Silent \(own_methods\.py:\d+\)\n"),
        ("long_and_red", r"raised ValueError: \[31mx{900,1000}\.\.\. \(own_methods\.py:\d+\)\n"),
        ("no_memory", r"was measured: measure fewer slices\n"),
    ],
)
def test_any_exception_of_a_method_is_one_line(capsys, own_methods, name, message):
    arguments = [f"own_methods:{name}", "--shape", "60x40x41", "--device", "cpu"]
    assert main(["measure", *arguments]) in (1, 3)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(message, err)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "class Own(BaseException): pass\nraise Own('skipped')",
            "cannot be imported: Own: skipped",
        ),
        (
            "def __getattr__(name): raise RuntimeError('lazy')",
            "f cannot be looked up: RuntimeError",
        ),
    ],
)
def test_any_exception_of_a_module_is_one_line(capsys, tmp_path, monkeypatch, code, message):
    (tmp_path / "odd_module.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop("odd_module", None)
    assert main(["measure", "odd_module:f", "--shape", "9x8x7", "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    sys.modules.pop("odd_module", None)
    assert message in err
    assert err.count("\n") == 1


def test_what_a_method_prints_is_not_in_the_json(capsys, own_methods):
    arguments = ["own_methods:talks", "--shape", "60x40x41", "--device", "cpu"]
    assert main(["measure", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "ok"
    assert "frame 0" in err


def test_a_function_without_an_estimator_is_measured_line_by_line(capsys, own_methods):
    arguments = ["own_methods:doubled", "--shape", "50x40x41", "--device", "cpu"]
    assert main(["measure", *arguments]) == 0
    text = capsys.readouterr().out
    assert text.startswith("own_methods.doubled has no estimator; 50 slices took ")
    assert "A ledger for it:\n\nfrom maxslices import from_ledger\n" in text
    assert "twice = np.add(data, data)" in text
    assert "return np.sqrt(twice)" in text


@pytest.mark.parametrize(
    ("function", "returned"),
    [("builtins:len", "a int"), ("numpy:ravel", "480 float32"), ("numpy:diff", None)],
)
def test_function_that_does_not_return_a_block_is_reported(capsys, function, returned):
    assert main(["measure", function, "--shape", "6x8x10", "--device", "cpu"]) == 0
    message = "pipelines cannot use it unchanged: it returned"
    text = capsys.readouterr().out
    assert f"{message} {returned}: it must return" in text if returned else message not in text


def test_an_error_names_the_innermost_line_of_the_authors_code(capsys, own_methods):
    assert main(["measure", "own_methods:faulty", "--suggest", "--device", "cpu"]) == 1
    assert "ValueError: all the input array" in (err := capsys.readouterr().err)
    assert err.endswith(" (own_methods.py:18)\n")


def test_any_function_is_described(capsys, own_methods):
    assert main(["methods", "own_methods:faulty"]) == 0
    assert "depth: 1  # int" in capsys.readouterr().out
    assert main(["methods", "own_methods:fault"]) == 2
    assert "own_methods has no fault; similar names: faulty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["nothing_like_it", "--shape", "5x5x5"], 1, "unknown method 'nothing_like_it'"),
        (["numpy.fft.fft2", "--shape", "5x5x5"], 1, "for any function: numpy.fft:fft2"),
        (["median_filter", "--shape", "5x5"], 2, "'5x5' is not a shape"),
        ([*BLOCK, "--dtype", "flat32"], 2, "'flat32' is not a dtype"),
        ([*BLOCK, "-p", "kernel_size"], 2, "write name=value"),
        ([*BLOCK, "-p", "kernel_size=3", "-p", "kernel_size=5"], 2, "kernel_size is repeated"),
        ([*BLOCK, "-p", "kernel_size=2026-13-41"], 1, "kernel_size' must be 3 or"),
        ([*BLOCK, "-p", "kernel=5"], 1, "has no parameter 'kernel'; did you mean kernel_size?"),
        (["fbp", "--shape", "9x9x9", "--device", "cpu", "--slice-dim", "0"], 2, "along dim 1"),
        (["fbp", "--shape", "9x9x9", "-p", "angles=3"], 2, "angles is made with the block"),
        (["minus_log", "--shape", "100000x100000x9000", "--device", "cpu"], 3, "measure fewer"),
        ([*BLOCK[:3], "--device", "cuda:99"], 1, NO_DEVICE),
        (["median_filter"], 2, "--shape is missing"),
        ([*BLOCK, "--suggest"], 2, "leave --shape out"),
        (["nowhere:f", "--suggest", "--device", "cpu"], 2, "the module 'nowhere' cannot be found"),
        (["numpy:flip", "--suggest", "-p", "angles=3"], 2, "angles is made with the block"),
    ],
)
def test_an_error_of_measure_is_one_line(capsys, arguments, code, message):
    assert main(["measure", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_read_only_home_names_the_folder_of_kernels(capsys, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system", "/home/me/.cupy/kernel_cache")

    monkeypatch.setattr("maxslices.checking.measurement.measure_method", refuse)
    assert main(["measure", *BLOCK]) == 1
    assert "; set CUPY_CACHE_DIR to a writable folder" in capsys.readouterr().err


def test_a_ledger_is_suggested(capsys):
    assert main(["measure", "numpy:flip", "--suggest", "-p", "axis=0", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "def needs(m, shape, dtype):" in text
    assert "m.alloc(shape, dtype)  # the input" in text
    assert "of the peaks measured on" in text
