"""Commands on tampered files: sweeps, plans, and files in the folder of a run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from maxslices.cli.main import main
from maxslices.runner.folder.journal import Journal

from . import scan_files
from .child import Difference, Outcome, cases
from .kills import ended, fork
from .mutate import damaged, damaged_text, tampered
from .random_runs import import_what_runs_need, results_in

STEPS = [
    {"method": "minus_log", "save_result": True},
    {"method": "median_filter", "parameters": {"kernel_size": 3}},
]
HERE = ["--device", "cpu", "--estimator", "declared"]
SWEPT = (
    """\
- method: standard_tomo
  module_path: httomo.data.hdf.loaders
  parameters:
    preview:
      angles: {start: 1, stop: 12}
      detector_y: {start: mid, start_offset: -2, stop: end}
    rotation_angles:
      user_defined: {start_angle: 0, stop_angle: 180, angles_total: 15}
- method: minus_log
- method: fbp
  parameters:
    center: !SweepRange
      start: 3
      stop: 8
      step: 0.5
""",
    """\
- method: median_filter
  parameters:
    kernel_size: !Sweep [3, 5]
- method: total_variation_rof
  parameters: {regularisation_parameter: 1.0e-2, iterations: 2}
""",
    json.dumps([{"method": "fbp", "parameters": {"center": 5}}, {"method": "minus_log"}]),
)
OPTIONS = ("fbp.center=3:8:0.5", "median_filter.kernel_size=[3, 5]", "fbp.center=[4.5,5]")
LATER_NAMES = (
    "report.html", "report.json", "run.log", "pipeline_as_run.yaml", "result.h5",
    ".run", ".run/result.h5", ".run/report.json", ".run/journal",
    ".run/section-1.000.scratch", ".run.journal",
)  # fmt: skip
"""Names in the folder of a run at which a link to a foreign file is planted."""


STATE_NAMES = (".run/journal", "report.json")
"""Files with the state of a folder, which are tampered with most often."""


def exit_status(arguments: list[str]) -> int:
    """Exit status of the command line, whose output is dropped.

    Raises
    ------
    Difference
        If it is not one of the documented values.
    """
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        status = main(arguments)
    except SystemExit as error:  # of argparse
        status = int(error.code or 0)
    if status not in (0, 1, 2, 3):
        raise Difference(f"exit status {status} of {arguments}")
    return status


def _import_what_commands_need(folder: Path) -> None:
    """Import the modules that children need, none of which starts a thread."""
    from maxslices import registry
    from maxslices.api import describe_scan, pictures, sweep  # noqa: F401

    import_what_runs_need(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        for command in ("run", "plan", "check", "info"):  # which are loaded when asked for
            main([command, "--help"])
    registry.get("fbp")  # and with it all packages of methods


def sweep_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Damage pipelines and options with sweeps, then check and run them."""
    _import_what_commands_need(folder)
    np.save(folder / "scan.npy", np.random.default_rng(0).integers(1, 999, (15, 7, 11), np.uint16))
    path = folder / "pipeline.yaml"

    def case(random_: random.Random) -> None:
        content, text = random_.choice(SWEPT), random_.choice(OPTIONS)
        if content.startswith("[") and random_.random() < 0.7:
            content = json.dumps(tampered(json.loads(content), random_))
        elif random_.random() < 0.8:
            content = damaged_text(content, random_)
        path.write_bytes(content.encode(errors="surrogatepass"))
        option = ["--sweep", damaged_text(text, random_)] if random_.random() < 0.4 else []
        exit_status(["check", str(path)])
        paths = [str(each) for each in (folder / "scan.npy", path, folder / "out")]
        exit_status(["run", *paths, *option, "--overwrite", "--memory", "1GB", *HERE])

    return cases(kind, seed, case)


def info_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Describe and check damaged scans."""
    _import_what_commands_need(folder)
    sound = [path for each in scan_files.seeds(folder / "sound").values() for path in each]
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(json.dumps(STEPS))

    def case(random_: random.Random) -> None:
        path = random_.choice(sound)
        target = folder / f"damaged{path.suffix}"
        target.write_bytes(damaged(path.read_bytes(), random_))
        options = random_.choice(([], ["--json"], ["--picture", str(folder / "picture.png")]))
        exit_status(["info", str(target), *options])
        exit_status(["check", str(pipeline), str(target)])

    return cases(kind, seed, case)


def plan_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Execute tampered plans. Each is rejected, or gives the result of the original plan."""
    folders = _folders(folder)
    sound = json.loads((folder / "plan.json").read_text())
    paths = [str(folder / "scan.npy"), str(folder / "pipeline.yaml"), str(folder / "out")]
    path = folder / "tampered.json"

    def case(random_: random.Random) -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        text = json.dumps(tampered(sound, random_))
        text = text if random_.random() < 0.8 else damaged_text(text, random_)
        path.write_bytes(text.encode(errors="surrogatepass"))
        if exit_status(["run", *paths, "--plan", str(path), "--device", "cpu"]) == 0:
            _check_results(folder / "out", folders["finished"])

    return cases(kind, seed, case)


def tampered_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Tamper with files in folders of runs, and run there again.

    Foreign files in and next to the folder must not change. A successful run must have the results
    of a run in an empty folder.
    """
    folders = _folders(folder)
    paths = [str(folder / "scan.npy"), str(folder / "pipeline.yaml"), str(folder / "out")]
    out, victim = folder / "out", folder / "victim.txt"

    def case(random_: random.Random) -> None:
        name = random_.choice(list(folders))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folders[name], out)
        mine = [out / "thesis.tex", out / "result_old.h5", victim]
        for each in mine:
            each.write_text("mine")
        if random_.random() < 0.8:
            _tamper_in(out, random_)
        if random_.random() < 0.4:
            link = out / random_.choice(LATER_NAMES)
            if link.is_file():
                link.unlink()
            link.parent.mkdir(exist_ok=True)
            if not link.exists():
                link.symlink_to(victim) if random_.random() < 0.7 else os.link(victim, link)
        options = random_.choice((["--overwrite"], ["--overwrite"], ["--resume"], ["--resume"], []))
        status = exit_status(["run", *paths, "--device", "cpu", *options])
        for each in mine:
            if not each.is_file() or each.read_text() != "mine":
                raise Difference(f"{each.name} has changed: {name} {options}")
        (out / "result_old.h5").unlink()
        if status == 0:
            _check_results(out, folders["finished"])

    return cases(kind, seed, case)


def _tamper_in(out: Path, random_: random.Random) -> None:
    """Change one of the text files of a run: its values, or its bytes."""
    files = [p for p in out.rglob("*") if p.suffix in (".json", ".yaml", ".log")]
    state = [path for name in STATE_NAMES if (path := out / name).exists()]
    path = random_.choice([*files, *state, *state])
    if path.suffix == ".json" and random_.random() < 0.7:
        path.write_text(json.dumps(tampered(json.loads(path.read_text()), random_)))
    elif random_.random() < 0.5:
        path.write_bytes(damaged(path.read_bytes(), random_))
    else:
        text = damaged_text(path.read_text(), random_)
        path.write_bytes(text.encode(errors="surrogatepass"))


def _check_results(out: Path, right: Path) -> None:
    """Compare results with those of an undisturbed run."""
    results, wanted = results_in(out), results_in(right)
    for name, array in wanted.items():
        if name not in results or results[name].tobytes() != array.tobytes():
            raise Difference(f"{name} differs")


@cache
def _folders(folder: Path) -> dict[str, Path]:
    """Make a scan, a plan, and folders of finished and stopped runs."""
    _import_what_commands_need(folder)
    scan, pipeline = folder / "scan.npy", folder / "pipeline.yaml"
    np.save(scan, np.random.default_rng(0).random((12, 6, 10), np.float32) + 0.5)
    pipeline.write_text(json.dumps(STEPS))
    run = ["run", str(scan), str(pipeline)]
    folders = {name: folder / name for name in ("finished", "stopped", "later", "whole")}
    log = folder / "log.txt"

    def stop_after(event: str, count: int, out: Path) -> None:
        seen = []
        original = getattr(Journal, event)

        def stop(journal: Journal, *args: object, **entries: object) -> object:
            result = original(journal, *args, **entries)
            seen.extend([args] * (event == "done" or args == ("moving",)))
            if len(seen) == count:
                os._exit(0)
            return result

        setattr(Journal, event, stop)
        exit_status([*run, str(out), "--block", "2", *HERE])

    def finish() -> None:
        exit_status([*run, str(folders["finished"]), "--block", "2", *HERE])

    def plan() -> None:
        out = os.open(folder / "plan.json", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        main(["plan", str(scan), str(pipeline), "--json", "--block", "2", *HERE])
        sys.stdout.flush()

    stops = (("done", 2, "stopped"), ("done", 5, "later"), ("note", 1, "whole"))
    for go in (finish, plan, *(lambda s=s: stop_after(*s[:2], folders[s[2]]) for s in stops)):
        status = ended(fork(go, log), log)
        if status:
            raise RuntimeError(f"a sound run ended with {status}: {log.read_text()}")
    return folders
