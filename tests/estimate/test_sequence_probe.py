"""Probes of methods whose allocations are seen, on a GPU that is made up."""

from __future__ import annotations

import pytest

from maxslices.estimate.probe_result import Probe
from maxslices.system.plain_records import from_plain, to_plain

from . import simulated_sequences
from .conftest import install_gpu
from .made_up_gpu import INPUT_BYTES, MB, array_depth
from .simulated_sequences import Program, probed_program


@pytest.fixture
def sequences(monkeypatch):
    return install_gpu(monkeypatch, simulated_sequences.SequenceGpu())


def line(p):
    padded = p.alloc(30 * MB * p.n + 5000, 1)
    p.free(p.alloc(3_000_001 * p.n, 2))
    p.alloc(INPUT_BYTES * p.n, 3)
    p.free(padded)


def results_of_slices(p):
    for _ in range(p.n):
        work = p.alloc(90 * MB, 1)
        p.alloc(1_234_567, 2)
        p.free(work)
    p.alloc(INPUT_BYTES * p.n, 3)


def pairs(p):
    p.alloc(40 * MB * -(-p.n // 2), 1)
    p.alloc(7 * MB * (p.n % 2), 2)


def chunks_of_16(p):
    p.alloc(INPUT_BYTES * p.n, 1)
    for start in range(0, p.n, 16):
        p.free(p.alloc(120 * MB * min(16, p.n - start), 2))


def another_way_above_20(p):
    p.alloc(INPUT_BYTES * p.n, 1)
    if p.n <= 20:
        p.alloc(200 * MB * p.n, 2)
    else:
        for _ in range(p.n):
            p.free(p.alloc(300 * MB, 3))


def two_peaks(p):
    p.free(p.alloc(3000 * MB + 10 * MB * p.n, 1))
    p.alloc(100 * MB * p.n, 2)


def plans_of_chunks(p):
    """Eight chunks, with an FFT plan for each different size, as LPRec3d_tomobar."""
    size = -(-p.n // 8)
    p.alloc(100 * MB * p.n, 1)
    for each in {size, p.n % size} - {0}:
        p.alloc(160 * MB * each, 2)


KEEP_THEIR_WAYS = [line, results_of_slices, pairs, two_peaks]
CHANGE = [chunks_of_16, another_way_above_20, plans_of_chunks]


def fitting(gpu, method, available):
    """Largest number of slices such that it and all smaller numbers fit."""
    return next(n for n in range(2161) if gpu.most_bytes(method, n + 1) > available)


@pytest.mark.parametrize("n", [9, 32, 61, 400])
@pytest.mark.parametrize("method", KEEP_THEIR_WAYS)
def test_four_small_calls_and_one_that_proves(sequences, method, n):
    available = sequences.most_bytes(method, n)
    probe = probed_program(sequences, method, available)
    right = fitting(sequences, method, available)
    assert probe.answer == right
    assert probe.sure
    assert probe.extrapolates_exactly
    assert probe.notes == ()
    assert sorted(sequences.counts) == sorted({1, 3, 5, 8, right} | {right} - {8})
    for k in (2, n, 2 * n, 1000):
        assert probe.model().bytes(k) >= sequences.most_bytes(method, k)
    assert probe.model().bytes(n) == max(sequences.most_bytes(method, k) for k in range(1, n + 1))


@pytest.mark.parametrize("n", [32, 61, 64, 200])
@pytest.mark.parametrize("method", CHANGE)
def test_a_method_that_changes_its_ways_is_called_until_it_is_known(sequences, method, n):
    available = sequences.most_bytes(method, n)
    probe = probed_program(sequences, method, available)
    right = fitting(sequences, method, available)
    assert 0.98 * right <= probe.answer <= right
    assert sequences.now_s <= 2.0


def test_long_calls_are_three(sequences):
    sequences.seconds = lambda n: 0.4 + 0.3 * n
    probe = probed_program(sequences, line, sequences.most_bytes(line, 50))
    assert sequences.counts == [1, 3, 2]
    assert probe.answer == 50
    assert not probe.sure
    assert "50 slices were not run, which takes" in probe.notes[0]


@pytest.mark.parametrize("n", [32, 61, 136, 200])
@pytest.mark.parametrize("method", CHANGE)
def test_what_is_not_proven_is_never_too_much(sequences, method, n):
    sequences.seconds = lambda k: 0.1 + 0.005 * k  # as LPRec3d_tomobar on an H200
    available = sequences.most_bytes(method, n)
    probe = probed_program(sequences, method, available)
    right = fitting(sequences, method, available)
    assert probe.answer <= right
    assert probe.answer >= (0.9 if n <= 64 else 0.6) * right
    assert sequences.now_s <= 4.0


def lprec(p):
    """LPRec3d_tomobar without its options that save memory, 1801 x 2557: four chunks of pairs.

    All that takes 1 MB or more, temporaries that leave pieces in the pool among them.
    """
    n_rows = p.n + p.n % 2
    rows_bytes = 1801 * 2558 * 4 * n_rows
    p.free(p.alloc(4_000_012, 1))
    padded = p.alloc(rows_bytes, 2)
    p.alloc(7204, 3)
    p.alloc(261_734_560, 4)
    filtered = p.alloc(rows_bytes, 5)
    for start in range(0, n_rows, -(-n_rows // 4)):
        chunk = min(-(-n_rows // 4), n_rows - start)
        for angles in (451, 451, 451, 448):
            wide = p.alloc(4 * chunk * angles * 8192, 6)
            spectrum, weighted = (p.alloc(8 * chunk * angles * 4097, line) for line in (7, 8))
            p.free(spectrum, wide)
            spectrum, wide = p.alloc(8 * chunk * angles * 4097, 9), p.alloc(p.n, 10)
            p.free(spectrum, weighted, wide)
    p.free(padded)
    rows, pairs = p.alloc(rows_bytes, 11), n_rows // 2
    volume = p.alloc(209_387_648 * pairs, 12)
    p.free(rows)
    p.free(p.alloc(rows_bytes, 13), filtered)
    chunk = -(-pairs // 4)
    for size in dict.fromkeys((chunk, pairs - chunk * (-(-pairs // chunk) - 1))):
        p.alloc(838_205_440 * size, 14)
    p.alloc(26_152_996 * max(8, p.n), 15)
    p.free(volume)


@pytest.mark.parametrize("slow", [1.0, 1.4, 2.0])
@pytest.mark.parametrize("n", [32, 53, 60, 61, 64])
def test_a_call_that_runs_out_of_memory_teaches(sequences, n, slow):
    sequences.seconds = lambda k: slow * (0.1 + 0.003 * k)
    available = sequences.most_bytes(lprec, n)
    probe = probed_program(sequences, lprec, available)
    right = fitting(sequences, lprec, available)
    assert 0.98 * right <= probe.answer <= right
    assert sequences.now_s <= 3.5


def queue_of_seven(p):
    waiting = []
    for _ in range(p.n):
        waiting.append(p.alloc(2 * INPUT_BYTES, 1))
        if len(waiting) > 7:
            p.free(waiting.pop(0))
    p.alloc(INPUT_BYTES * p.n, 2)


def test_a_method_that_is_understood_is_not_called_again_and_again(sequences):
    probe = probed_program(sequences, queue_of_seven, sequences.most_bytes(queue_of_seven, 40))
    assert probe.answer == 40
    assert len(sequences.counts) <= 10


def test_one_slice_more_is_tried_where_only_padding_lacks(sequences):
    def sort(p):  # scratch of several arrays, each padded
        padded = sum(-(-size // 256) * 256 for size in (INPUT_BYTES * p.n + 7, 21_599 * p.n))
        p.alloc(padded + 511, 1)

    for n in (20, 37, 90):
        sequences.counts.clear()
        probe = probed_program(sequences, sort, sequences.most_bytes(sort, n))
        assert probe.answer == n
        assert len(sequences.counts) <= 6


@pytest.mark.parametrize("n", [24, 31, 32, 33, 40, 53, 64, 100])
@pytest.mark.parametrize("off", [0, 3 * MB, 6 * MB])
def test_padded_arrays_outside_the_pool_are_known_from_readings_that_lie_off(sequences, n, off):
    # As SIRT3d_tomobar on an H200: a volume of 2560 x 2560 float32 a slice, and long calls.
    def outside(k):
        return 2560 * 2560 * 4 * array_depth(k)

    sequences.outside_of = lambda k: outside(k) + off * (k % 2)
    sequences.seconds = lambda k: 0.4 + 0.3 * k

    def needs(k):
        return sequences.most_bytes(line, k) + outside(k)

    probe = probed_program(sequences, line, needs(n))
    assert sequences.counts == [1, 3, 2]
    assert probe.answer == max(k for k in range(1, 200) if needs(k) <= needs(n))
    assert probe.model().bytes(n) == needs(n)
    assert any("were outside the pool: counted" in note for note in probe.notes)


@pytest.mark.parametrize("n", [24, 32, 33])
def test_a_reading_of_the_answer_that_lies_off_costs_no_slice(sequences, n):
    def outside(k):
        return 2560 * 2560 * 4 * array_depth(k)

    sequences.outside_of = lambda k: outside(k) + 500_000
    needs = sequences.most_bytes(line, n) + outside(n)
    probe = probed_program(sequences, line, needs)
    assert n in sequences.counts
    assert probe.answer == n
    assert probe.model().bytes(n) == needs


def test_memory_outside_the_pool_that_is_no_array_is_measured_as_before(sequences):
    sequences.outside_of = lambda k: 100 * MB + 33 * MB * k
    available = sequences.most_bytes(line, 40) + 100 * MB + 33 * MB * 40
    probe = probed_program(sequences, line, available)
    assert any("derived from its peaks alone" in note for note in probe.notes)
    assert 39 <= probe.answer <= 40


def test_memory_that_depends_on_the_data_is_measured_as_before(sequences):
    def bright(p):
        p.alloc(INPUT_BYTES * p.n * (1 if sequences.kind_of_data == "even" else 2), 1)

    probe = probed_program(sequences, bright, 3 * 40 * INPUT_BYTES)
    assert probe.answer == 40
    assert any("depends on the data" in note for note in probe.notes)


def test_memory_that_only_other_data_take_in_the_end_is_seen(sequences):
    def dark(p):
        block = p.alloc(INPUT_BYTES * p.n, 1)
        if sequences.kind_of_data == "dark":
            p.alloc(INPUT_BYTES * p.n, 2)
        p.free(block)

    probe = probed_program(sequences, dark, 3 * 40 * INPUT_BYTES)
    assert probe.answer == 40
    assert any("depends on the data" in note for note in probe.notes)


def test_what_is_measured_otherwise_is_measured_with_the_usual_data(sequences):
    def odd(p):  # what the sequence does not show comes with the second call
        p.alloc(INPUT_BYTES * p.n, 1)

    sequences.outside_of = lambda k: 333 * MB if k == 5 else 0
    probed_program(sequences, odd, 100 * INPUT_BYTES)
    assert sequences.kind_of_data == "even"


def test_fewer_slices_than_the_small_calls_have(sequences):
    probe = probed_program(sequences, line, 10**12, total=4)
    assert probe.answer == 4
    assert set(sequences.counts) == {1, 3, 4}
    assert probed_program(sequences, line, 10**12, total=1).answer == 1


def test_not_even_one_slice_fits(sequences):
    probe = probed_program(sequences, line, INPUT_BYTES)
    assert probe.answer == 0
    assert probe.model().bytes(1) == sequences.most_bytes(line, 1)


def test_it_answers_for_any_memory_and_in_json(sequences):
    probe = probed_program(sequences, line, sequences.most_bytes(line, 50))
    again = from_plain(Probe, to_plain(probe), "probe")
    assert again == probe
    for n in (1, 9, 300, 2000):
        available = sequences.most_bytes(line, n)
        assert again.covers(available, 2160)
        assert again.model().max_slices(available, 2160) == n


def back_projects(p):
    """As in FBP3d_tomobar: a workspace is freed before its library allocates outside the pool."""
    filtered = p.alloc(INPUT_BYTES * p.n, 1)
    workspace = p.alloc(67 * MB + INPUT_BYTES * p.n // 2, 2)
    p.free(workspace)
    p.alloc(2560 * 2560 * 4 * p.n, 3)
    p.free(filtered)


@pytest.mark.parametrize("n", [20, 33, 47])
def test_memory_outside_the_pool_counts_at_its_own_moment(sequences, n):
    def outside(k):
        return INPUT_BYTES * array_depth(k)

    def moment(sequence):  # after the volume was allocated
        return len(sequence.events) - 2

    sequences.outside_of, sequences.outside_at = outside, moment

    def needs(k):
        program = Program(k)
        back_projects(program)
        sizes = list(program.sequence().alive_bytes())
        return max(max(sizes), sizes[moment(program.sequence())] + outside(k))

    probe = probed_program(sequences, back_projects, needs(n))
    assert probe.peaks is not None
    assert len(sequences.counts) <= 5
    for k in (1, 2, 3, 5, 8, 17, 20, 33, 47, 64, 100):
        assert needs(k) <= probe.model().bytes(k) <= 1.001 * needs(k)


def test_a_large_call_that_takes_more_outside_the_pool_counts_as_it_was_read(sequences):
    """FBP3d_tomobar of 128 slices: 9 MB of 7.8 GB more, which the pool held in pieces."""

    def outside(k):
        return INPUT_BYTES * array_depth(k)

    sequences.outside_of = lambda k: outside(k) + (12 * MB if k > 16 else 0)
    needs = sequences.most_bytes(line, 40) + sequences.outside_of(40)
    probe = probed_program(sequences, line, needs)
    assert probe.peaks is not None
    assert probe.answer == 40
    assert probe.model().bytes(40) == needs
    assert probe.model().bytes(12) == sequences.most_bytes(line, 12) + outside(12)


@pytest.mark.parametrize("gives_back", [True, False])
def test_free_memory_of_the_pool_counts_in_addition_to_memory_outside(sequences, gives_back):
    """A library cannot use it. Memory returned to the driver does not count."""

    def method(p):
        p.free(p.alloc(3 * INPUT_BYTES * p.n, 1))
        p.alloc(INPUT_BYTES * p.n, 2)

    sequences.outside_of = lambda k: 150 * MB
    sequences.outside_at = lambda sequence: len(sequence.events) - 1
    sequences.gives_back = gives_back
    needs = 4 * INPUT_BYTES * 40 + (0 if gives_back else 150 * MB)
    probe = probed_program(sequences, method, needs)
    assert needs <= probe.model().bytes(40) <= 1.001 * needs
