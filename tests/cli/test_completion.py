"""Completion of command lines, as shells ask for it."""

from __future__ import annotations

import subprocess

import pytest

from maxslices.cli.main import main


@pytest.fixture
def complete(capsys, monkeypatch):
    """Function that completes the last word of a command line: what is proposed."""

    def run(text):
        monkeypatch.setenv("_MAXSLICES_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", text)
        monkeypatch.setenv("COMP_CWORD", str(len(text.split(" ")) - 1))
        assert main([]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [line.partition(",")[2] or line for line in out.split()]

    return run


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ("maxslices me", ["measure", "methods"]),
        ("maxslices records e", ["export"]),
        ("maxslices run --host", ["--host-memory"]),
        ("maxslices run --form", ["--format"]),
        ("maxslices run --format ", ["hdf5", "tiff", "tiff-stack", "ome-zarr"]),
        ("maxslices measure median", ["median_filter"]),
        ("maxslices methods minus_l", ["minus_log"]),
        ("maxslices run ", ["file,"]),
        ("maxslices run --nothing", []),
    ],
)
def test_what_is_proposed(complete, text, proposed):
    assert complete(text) == proposed


def test_the_script_of_bash_can_be_read_by_it(cli):
    text = cli("completion", "bash")[1]
    script = f"{text}\ncomplete -p maxslices"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert "-F _maxslices_completion maxslices" in done.stdout
