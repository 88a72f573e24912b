"""What a look-up has to find out about packages, and what it reads for that."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from maxslices.system.packages import required_versions

LOOK = """
import json, sys
import numpy as np
from maxslices.devices import select_backend
from maxslices.estimate import ModelRequest
from maxslices.estimate.model_resolver import ModelResolver
from maxslices.estimate.recorded import Records
from maxslices.core.method_registry import registry

meta = registry.get("maxslices_methods.normalize.minus_log")
request = ModelRequest(meta, 0, (20, 30), np.dtype("f4"), {}, 90)
resolver = ModelResolver(
    "cpu",
    backend=select_backend("cpu"),
    records=Records(),
    available_bytes=10**6,
    forced=sys.argv[1],
)
seen = []
kinds = {"open": "open", "os.listdir": "list", "os.scandir": "list", "import": "import"}
sys.addaudithook(lambda event, given: event in kinds and seen.append((kinds[event], str(given[0]))))
for _ in range(2):
    found = resolver.resolve(request)
    print(json.dumps([found.origin, [each for each in seen if each[0] in ("open", "list")]]))
    seen.clear()
"""


def looked(forced):
    ran = subprocess.run(
        [sys.executable, "-c", LOOK, forced], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_look_up_reads_each_file_once_and_the_next_in_a_process_only_what_may_have_changed():
    assert {origin for origin, _ in looked("probed")} == {"probed"}
    (first, read), (second, again) = looked("recorded")
    assert first == second == "recorded"
    opened = [Path(name) for kind, name in read if kind == "open"]
    opened = [path for path in opened if path.is_file() and path.suffix != ".pyc"]
    assert max(Counter(opened).values()) == 1
    beside = {path for path in opened if path.suffix == ".py"}
    assert {path.parent.name for path in beside} == {"maxslices_methods"}
    rest = [path.name for path in opened if path not in beside]
    n_packages = len(required_versions("maxslices_methods")) + 1  # and maxslices itself
    assert Counter(rest)["METADATA"] <= n_packages + 1
    assert len(set(rest)) == 2
    assert all(re.fullmatch(r"METADATA|.*minus_log\.\w+\.json", name) for name in rest)
    folders = [Path(name).name for kind, name in read if kind == "list"]
    assert folders.count("maxslices_methods") == 2  # has it changed?
    (opened,) = [Path(name).name for kind, name in again if kind == "open"]
    assert opened in rest


def test_versions_of_what_a_package_requires_belong_to_the_place():
    found = required_versions("maxslices_methods")
    assert found["scipy"] == importlib.metadata.version("scipy")
    assert "maxslices" not in found
    assert required_versions("no_such_package") == {}


def test_they_are_what_python_says():
    for package in ("maxslices_methods", "pytest", "hypothesis"):
        for name, version in required_versions(package).items():
            assert version == importlib.metadata.version(name)
    assert set(required_versions("pytest")) >= {"packaging", "pluggy", "iniconfig"}


def test_versions_of_all_kinds_of_metadata(tmp_path, monkeypatch):
    for folder, file, needs in (
        ("Some_Thing-1.2.dist-info", "METADATA", "Requires-Dist: old.one>=3\n"),
        ("old.one.egg-info", "PKG-INFO", ""),
    ):
        (tmp_path / folder).mkdir()
        text = f"Metadata-Version: 2.1\nName: x\nVersion: 4.5\n{needs}\nVersion: 9\n"
        (tmp_path / folder / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert required_versions("some-thing") == {"old.one": "4.5"}
