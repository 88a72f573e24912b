"""Plans for several processes: data between sections in files, memory shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maxslices import ArraySpec, plan, run
from maxslices.api.on_workers import worker_budgets
from maxslices.errors import DoesNotFitError, PlanError, UsageError
from maxslices.system.resource_limits import MemoryLimit
from maxslices.workers import workers
from maxslices.workers.section_job import WorkerFacts
from tests.runner.resumable import content, of

STEPS = ["negate", "work", "negate"]


def test_data_between_sections_are_in_files():
    spec = ArraySpec((101, 53, 59), "float32")
    alone = plan(spec, of(STEPS), device="cpu", memory="1GB")
    shared = plan(spec, of(STEPS), device="cpu", memory="1GB", workers=2)
    assert [each.destination for each in alone.sections[:-1]] == ["memory"] * 2
    assert [each.destination for each in shared.sections[:-1]] == ["scratch file"] * 2
    assert shared.scratch_bytes == 2 * spec.nbytes
    assert shared.budget_bytes == alone.budget_bytes


@pytest.mark.parametrize(("n_slices", "memory"), [(101, "1GB"), (29, "1GB"), (2048, "30MB")])
def test_all_workers_have_as_many_blocks(n_slices, memory):
    spec = ArraySpec((n_slices, 53, 59), "float32")
    for section in plan(spec, of(STEPS), device="cpu", memory=memory, workers=4).sections:
        assert section.n_blocks >= 4
        assert section.n_slices / section.block > 4 * (-(-section.n_blocks // 4)) - 1


def test_workers_with_gpus_share_host_memory():
    spec = ArraySpec((101, 53, 59), "float32")
    options = {"device": "cuda", "memory": "16GB", "host_memory": "7GB"}
    planned = plan(spec, of(STEPS), **options, workers=7)
    assert (planned.budget_bytes, planned.host_budget_bytes) == (16 * 10**9, 10**9)


def test_workers_with_gpus_keep_data_between_sections_in_memory_if_all_fit():
    spec = ArraySpec((101, 53, 59), "float32")
    options = {"device": "cuda", "memory": "16GB", "workers": 7}
    planned = plan(spec, of(STEPS), **options, host_memory="7GB")
    assert [each.destination for each in planned.sections[:-1]] == ["scratch file"] * 2
    assert [each.kept_bytes for each in planned.sections] == [spec.nbytes, spec.nbytes, 0]
    assert planned.scratch_bytes == 0
    used = [each.host_bytes for each in planned.sections]
    assert "-> scratch file in memory" in str(planned)
    least = next(n for n in range(1, 1000) if _keeps(spec, n * 10**6))
    few = plan(spec, of(STEPS), **options, host_memory=(least - 1) * 10**6)
    assert few.sections[0].kept_bytes == 0
    assert few.sections[0].host_bytes == used[0] - -(-spec.nbytes // 7)
    assert few.scratch_bytes >= spec.nbytes


def _keeps(spec, host_bytes):
    options = {"device": "cuda", "memory": "16GB", "workers": 7}
    try:
        return plan(spec, of(STEPS), **options, host_memory=host_bytes).sections[0].kept_bytes > 0
    except DoesNotFitError:
        return False


def test_no_workers_are_refused():
    with pytest.raises(UsageError, match="at least 1 is needed"):
        plan(ArraySpec((101, 53, 59), "float32"), of(STEPS), device="cpu", workers=0)


def test_workers_execute_an_earlier_plan(tmp_path, scan, client):
    planned = plan(scan, of(STEPS), device="cpu", block=3, workers=2)
    run(scan, of(STEPS), tmp_path / "shared", plan=planned, engine=client)
    run(scan, of(STEPS), tmp_path / "alone", plan=planned, device="cpu")
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def facts(host, free, host_free, reserved=3):
    return WorkerFacts(f"tcp://{host}", host, "boot", "GPU", reserved, free, host_free, 5)


def test_budgets_are_those_of_the_worker_with_the_least():
    workers = (facts("a", 101, 60), facts("a", 89, 60), facts("b", 97, 31, reserved=7))
    on_gpus = worker_budgets(workers, "cuda", None, None)
    assert (on_gpus.budget_bytes, on_gpus.host_budget_bytes, on_gpus.reserved_bytes) == (89, 30, 7)
    assert worker_budgets(workers, "cpu", None, None).budget_bytes == 30
    assert worker_budgets(workers, "cuda", 50, 40).host_budget_bytes == 20


def limited(host, name, free, is_of_process=False):
    limit = MemoryLimit(name, 90, free, is_of_process)
    return replace(facts(host, 99, 60), limits=(limit,))


def test_memory_budget_must_be_within_the_limits_of_each_machine():
    two = (limited("a", "SLURM's job", 80), limited("a", "SLURM's job", 80))
    assert worker_budgets(two, "cpu", 40, None).budget_bytes == 40
    message = "41 B of memory are allowed for each of 2 workers, but SLURM's job on a leaves 80 B"
    with pytest.raises(DoesNotFitError, match=message):
        worker_budgets(two, "cpu", 41, None)
    apart = (limited("a", "SLURM's job", 80), limited("b", "SLURM's job", 50))
    with pytest.raises(DoesNotFitError, match=r"51 B .* on b leaves 50 B"):
        worker_budgets(apart, "cpu", 51, None)
    each = (limited("a", "ulimit", 80, True), limited("a", "ulimit", 80, True))
    assert worker_budgets(each, "cpu", 80, None).budget_bytes == 80
    with pytest.raises(DoesNotFitError, match="81 B of memory are allowed, but ulimit on a"):
        worker_budgets(each, "cpu", 81, None)
    assert worker_budgets(two, "cuda", 500, 80).host_budget_bytes == 40
    with pytest.raises(DoesNotFitError, match="81 B of memory are allowed, but SLURM's job on a"):
        worker_budgets(two, "cuda", 500, 81)


def test_a_plan_for_workers_is_within_the_limits_here(monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2000")
    scan = ArraySpec((11, 13, 17), "uint16")
    assert plan(scan, ["minus_log"], device="cpu", memory="1GB").budget_bytes == 10**9
    with pytest.raises(DoesNotFitError, match="for each of 3 workers, but SLURM's job leaves"):
        plan(scan, ["minus_log"], device="cpu", memory="1GB", workers=3)


@pytest.fixture
def uneven(monkeypatch):
    """Function that puts the first worker on its own machine, with that much memory."""
    describe = workers.describe_workers

    def less(n_bytes):
        def described(*args):
            device, (first, *rest) = describe(*args)
            first = replace(first, host="small", host_free_bytes=n_bytes)
            return device, (first, *rest)

        monkeypatch.setattr(workers, "describe_workers", described)

    return less


def test_plan_beyond_the_memory_of_one_worker_is_rejected(tmp_path, scan, client, uneven):
    planned = plan(scan, of(STEPS), device="cpu", memory="1GB", block=3, workers=2)
    needed = max(each.estimated_bytes for each in planned.sections)
    uneven(needed)
    run(scan, of(STEPS), tmp_path / "fits", plan=planned, engine=client)
    uneven(needed - 1)
    with pytest.raises(PlanError, match=r"and .* are free \(.* on small \(cpu\)\): allow less"):
        run(scan, of(STEPS), tmp_path / "out", plan=planned, engine=client)
    assert not (tmp_path / "out").exists()


def test_blocks_are_planned_for_the_worker_with_the_least_memory(tmp_path, scan, client, uneven):
    one_slice = plan(scan, of(STEPS), device="cpu", memory="1GB", block=1, workers=2)
    little = max(each.estimated_bytes for each in one_slice.sections) + 20_000
    uneven(little)
    planned = run(scan, of(STEPS), tmp_path / "out", engine=client, block="max").plan
    assert planned.budget_bytes == little
    assert max(each.block for each in planned.sections) < 17


def test_each_worker_has_as_many_blocks_as_one_process():
    scan = ArraySpec((64, 4096, 32), "uint16")
    options = {"device": "cuda", "memory": "16GB", "host_memory": "64GB"}
    alone = plan(scan, ["remove_stripe_ti"], **options).sections[0]
    shared = plan(scan, ["remove_stripe_ti"], workers=2, **options).sections[0]
    assert (alone.block, alone.n_blocks) == (128, 32)
    assert (shared.block, shared.n_blocks) == (64, 64)
    many = plan(scan, ["remove_stripe_ti"], workers=64, **options).sections[0]
    assert many.block == 32  # fewer slices at a time would make calls dearer
