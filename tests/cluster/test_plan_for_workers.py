"""Plans for several processes: data between sections in files, memory shared."""

from __future__ import annotations

import json

import pytest

from maxslices import ArraySpec, plan, run
from maxslices.api.on_workers import worker_budgets
from maxslices.cli.main import main
from maxslices.cluster.section_job import WorkerFacts
from maxslices.errors import UsageError
from tests.runner.test_resume import content, of

STEPS = ["negate", "work", "negate"]


def test_data_between_sections_are_in_files():
    spec = ArraySpec((101, 53, 59), "float32")
    alone = plan(spec, of(STEPS), device="cpu", memory="1GB")
    shared = plan(spec, of(STEPS), device="cpu", memory="1GB", workers=2)
    assert [each.destination for each in alone.sections[:-1]] == ["memory"] * 2
    assert [each.destination for each in shared.sections[:-1]] == ["scratch file"] * 2
    assert shared.scratch_bytes == 2 * spec.nbytes
    assert shared.budget_bytes == alone.budget_bytes


def test_workers_beside_gpus_share_host_memory():
    spec = ArraySpec((101, 53, 59), "float32")
    given = {"device": "cuda", "memory": "16GB", "host_memory": "7GB"}
    made = plan(spec, of(STEPS), **given, workers=7)
    assert (made.budget_bytes, made.host_budget_bytes) == (16 * 10**9, 10**9)
    assert {each.kept_bytes for each in made.sections} == {0}


def test_no_workers_are_refused():
    with pytest.raises(UsageError, match="at least one is needed"):
        plan(ArraySpec((101, 53, 59), "float32"), of(STEPS), device="cpu", workers=0)


def test_a_sweep_is_planned_for_a_worker_that_runs_whole_values():
    spec, given = ArraySpec((101, 53, 59), "float32"), {"device": "cpu", "memory": "1GB"}
    alone = plan(spec, of(STEPS), sweep="work.copies=1:3:1", **given)
    shared = plan(spec, of(STEPS), sweep="work.copies=1:3:1", workers=2, **given)
    assert shared == alone


def test_a_plan_made_before_is_carried_out_by_workers(tmp_path, scan, client):
    made = plan(scan, of(STEPS), device="cpu", block=3, workers=2)
    run(scan, of(STEPS), tmp_path / "shared", plan=made, engine=client)
    run(scan, of(STEPS), tmp_path / "alone", plan=made, device="cpu")
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def test_the_command_line_plans_for_workers(tmp_path, capsys):
    steps = "- method: paganin_filter\n- method: remove_stripe_ti"
    (tmp_path / "pipeline.yaml").write_text(steps)
    shape = ["--shape", "101x53x59", "--memory", "1GB", "--device", "cpu"]
    assert main(["plan", *shape, str(tmp_path / "pipeline.yaml"), "--workers", "2", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["sections"][0]["destination"] == "scratch file"


def test_budgets_are_those_of_the_worker_with_the_least():
    def facts(host, free, host_free, reserved=3):
        return WorkerFacts(f"tcp://{host}", host, "boot", "GPU", reserved, free, host_free, 5)

    workers = (facts("a", 101, 60), facts("a", 89, 60), facts("b", 97, 31, reserved=7))
    on_gpus = worker_budgets(workers, "cuda", None, None)
    assert (on_gpus.budget_bytes, on_gpus.host_budget_bytes, on_gpus.reserved_bytes) == (89, 30, 7)
    assert worker_budgets(workers, "cpu", None, None).budget_bytes == 30
    assert worker_budgets(workers, "cuda", 50, 40).host_budget_bytes == 20


def test_each_worker_has_as_many_blocks_as_one_process():
    scan = ArraySpec((64, 4096, 32), "uint16")
    options = {"device": "cuda", "memory": "16GB", "host_memory": "64GB"}
    alone = plan(scan, ["remove_stripe_ti"], **options).sections[0]
    shared = plan(scan, ["remove_stripe_ti"], workers=2, **options).sections[0]
    assert (alone.block, alone.n_blocks) == (128, 32)
    assert (shared.block, shared.n_blocks) == (64, 64)
    many = plan(scan, ["remove_stripe_ti"], workers=64, **options).sections[0]
    assert many.block == 32  # fewer slices at a time would make calls dearer
