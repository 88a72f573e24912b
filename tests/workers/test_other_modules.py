"""Modules in the current folder are not taken for those that workers need."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np

PROGRAM = """
import os, sys
from maxslices import Registry, Pipeline, run

methods = Registry()

def twice(data):
    return data * 2

methods.register(twice, pattern="projection", name="twice")

if __name__ == "__main__":
    run("scan.npy", Pipeline.from_steps(["twice"], methods), "out", workers=1, device="cpu")
    assert "PYTHONSAFEPATH" not in os.environ
"""


def test_workers_start_where_modules_have_the_names_of_others(tmp_path):
    for name in ("numpy", "types", "maxslices"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the user')")
    np.save(tmp_path / "scan.npy", np.ones((3, 4, 5), np.float32))
    program = tmp_path / "programs" / "program.py"
    program.parent.mkdir()
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (tmp_path / "out/result.h5").exists()
