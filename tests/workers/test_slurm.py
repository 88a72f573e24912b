"""Workers that SLURM starts; its commands are stood in for by scripts that run jobs at once."""

from __future__ import annotations

import os

import pytest

from maxslices import run
from maxslices.errors import DeviceError, UsageError
from maxslices.workers import slurm_cluster
from tests.runner.test_resume import content, of

SBATCH = """#!/bin/sh
if [ "$1" = --test-only ]; then
    grep -q nothing && { echo "sbatch: error: invalid partition specified: nothing" >&2; exit 1; }
    exit 0
fi
cp "$1" "JOBS/$$.sh"
RUN
echo "Submitted batch job $$"
"""
RUNS = '(sh "JOBS/$$.sh" >"JOBS/$$.out" 2>&1 & echo $! >"JOBS/$$.pid")'
SQUEUE = "#!/bin/sh\nexit 0\n"
SCANCEL = '#!/bin/sh\nkill "$(cat "JOBS/$1.pid")"\n'


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Function that puts SLURM's commands in place; folder of the jobs' scripts."""
    jobs, commands = tmp_path / "jobs", tmp_path / "commands"

    def put(runs=RUNS):
        jobs.mkdir()
        commands.mkdir()
        texts = {"sbatch": SBATCH.replace("RUN", runs), "squeue": SQUEUE, "scancel": SCANCEL}
        for name, text in texts.items():
            (commands / name).write_text(text.replace("JOBS", str(jobs)))
            (commands / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
        return jobs

    return put


def test_jobs_run_a_scan(tmp_path, scan, slurm):
    jobs = slurm()
    options = "-p cpu -t 02:00:00 -A 'a project'"
    run(scan, of(["to_float", "work"]), tmp_path / "out", workers=2, slurm=options)
    run(scan, of(["to_float", "work"]), tmp_path / "alone", device="cpu", plan=None)
    assert content(tmp_path / "out") == content(tmp_path / "alone")
    (first, *_) = scripts = [path.read_text() for path in jobs.glob("*.sh")]
    assert len(scripts) == 2
    directives = [line for line in first.splitlines() if line.startswith("#SBATCH")]
    assert directives == ["#SBATCH -J maxslices", "#SBATCH -n 1", f"#SBATCH {options}"]
    assert "--nthreads 1" in first


def test_jobs_with_a_gpu_ask_for_one():
    settings = slurm_cluster._settings("-p gpu", on_gpus=True)
    assert settings["job_extra_directives"] == ["--gres=gpu:1", "-p gpu"]
    assert settings["worker_extra_args"][-2:] == ["--resources", "GPU=1"]
    own = slurm_cluster._settings("--gpus=h200:1", on_gpus=True)
    assert own["job_extra_directives"] == ["--gpus=h200:1"]


def test_what_the_site_has_configured_holds():
    import dask

    site = {"cores": 8, "memory": "64GB", "job-extra-directives": ["--qos=short"]}
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in site.items()}):
        settings = slurm_cluster._settings("-p cpu", on_gpus=False)
    assert settings["job_extra_directives"] == ["--qos=short", "-p cpu"]
    assert "cores" not in settings
    assert "job_directives_skip" not in settings


def test_what_slurm_refuses_is_said(tmp_path, scan, slurm):
    slurm()
    with pytest.raises(
        DeviceError, match=r"refuses the jobs: error: invalid partition .*: nothing"
    ):
        run(scan, of(["work"]), tmp_path / "out", workers=1, slurm="-p nothing")
    assert not (tmp_path / "out").exists()


REFUSES = 'echo "sbatch: error: Job violates policy" >&2; exit 1'


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (REFUSES, "SLURM refuses the jobs: error: Job violates policy"),
        ("echo later; exit 0", "SLURM refuses the jobs: .* later"),
    ],
)
def test_jobs_refused_when_submitted_are_not_waited_for(tmp_path, scan, slurm, caplog, runs, said):
    slurm(runs=runs)
    with pytest.raises(DeviceError, match=said):
        run(scan, of(["work"]), tmp_path / "out", workers=2, slurm="")
    assert "exception" not in caplog.text


def test_a_run_begins_with_the_jobs_that_slurm_takes(tmp_path, scan, slurm):
    jobs = slurm(runs=f"mkdir JOBS/taken 2>/dev/null || {{ {REFUSES}; }}\n{RUNS}")
    run(scan, of(["to_float", "work"]), tmp_path / "out", workers=2, slurm="")
    assert (tmp_path / "out" / "result.h5").exists()
    assert len([*jobs.glob("*.pid")]) == 1


def test_jobs_that_all_end_are_not_waited_for(tmp_path, scan, slurm, monkeypatch):
    slurm(runs="")
    monkeypatch.setattr(slurm_cluster, "_LOOK_S", 1.0)
    with pytest.raises(DeviceError, match="all jobs ended before a worker was there"):
        run(scan, of(["work"]), tmp_path / "out", workers=1, slurm="")


def test_without_slurm_it_is_said(tmp_path, scan, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="there is no sbatch here"):
        run(scan, of(["work"]), tmp_path / "out", workers=1, slurm="")


@pytest.mark.parametrize(
    "wrong", [{}, {"gpus": "all"}, {"workers": 1, "gpus": 1}, {"workers": 1, "engine": "dask"}]
)
def test_how_many_jobs_has_to_be_said(tmp_path, scan, wrong):
    with pytest.raises(UsageError, match=r"give the number of jobs|leave the engine out"):
        run(scan, of(["work"]), tmp_path / "out", slurm="-p cpu", **wrong)


def test_an_sbatch_that_does_not_answer_is_not_waited_for(tmp_path, scan, monkeypatch):
    """As where the site's controller is down."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_cluster, "ANSWER_S", 0.5)
    with pytest.raises(DeviceError, match="sbatch did not answer in"):
        run(scan, of(["work"]), tmp_path / "out", workers=1, slurm="")
