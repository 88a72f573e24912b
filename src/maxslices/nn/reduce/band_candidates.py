"""Candidates that run the modules holding most at the peak in bands of the image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from ...core.allocators import round_to_granule
from ..replay.trace import Storage
from .bands import BandWindow
from .candidates import SMALL_BYTES, Candidate
from .locality import find_band_window, may_be_local
from .module_ranges import ModuleOrder, children_of, modules_and_ranges, range_at
from .module_study import ForwardCall, StepStudy
from .rewrite import Rewrite

BANDS = (2, 4, 8, 16)
"""Numbers of bands that are offered. Powers of two: the memory halves from one to the next."""
N_MODULES = 5
"""Number of modules offered: those that hold most at the peak."""
SMALL_PART = 1 / 20
"""Modules that hold less than this part of the peak are not offered."""
N_TESTED = 10
"""Number of modules that are tested for locality: a test runs the module, 0.1 to 2 s each."""


def band_candidates(
    study: StepStudy, model: nn.Module, windows: dict[str, BandWindow | None]
) -> list[Candidate]:
    """Candidates that run the heaviest local modules in bands of their longest axis.

    Parameters
    ----------
    study : StepStudy
        Study of the step.
    model : torch.nn.Module
        Real model; copies of its modules are run on the CPU.
    windows : dict
        Windows found before, by path; those found now are added.
    """
    made: list[Candidate] = []
    modules = modules_and_ranges(model)
    order = ModuleOrder(model)
    taken: dict[str, int] = {}
    for held, call in _heaviest(study):
        if len(taken) == N_MODULES:
            break
        if any(
            # A module inside a taken one is taken if it holds at most half as much.
            order.overlap(call.path, other)
            and not (order.is_inside(call.path, other) and 2 * held <= of_other)
            for other, of_other in taken.items()
        ):
            continue
        n, last = max((size, place) for place, size in enumerate(call.shape[:1:-1], 1))
        if call.path not in windows:
            if len(windows) == N_TESTED or not may_be_local(modules[call.path]):
                continue
            train = not model.training  # a training step puts the whole model into train mode
            windows[call.path] = find_band_window(
                modules[call.path], call.shape, -last, train=train
            )
        window = windows[call.path]
        if window is None:
            continue
        taken[call.path] = held
        paths = _inside(call.path, model)
        made += [
            _candidate(study, call, paths, n, Rewrite("checkpoint", (), parts, window))
            for parts in BANDS
            if parts <= window.most(n)
        ]
    return made


def _heaviest(study: StepStudy) -> list[tuple[int, ForwardCall]]:
    """Calls that can be run in bands, with the bytes they hold at the peak, the most first."""
    storages, peak = study.trace.storages, int(study.usage.argmax())
    n_calls: dict[str, int] = {}
    for call in study.calls:
        n_calls[call.path] = n_calls.get(call.path, 0) + 1
    writers = {call.path for call in study.calls if call.changes_input}
    least = max(SMALL_BYTES, int(study.usage.max() * SMALL_PART))
    sizes = []
    for call in study.calls:
        fine = len(call.shape) > 2 and len(call.inputs) == len(call.outputs) == 1
        if not fine or call.inputs == call.outputs or call.path in writers:
            continue
        if n_calls[call.path] > 1 or (call.path and call.path not in study.begins):
            continue
        held = sum(
            round_to_granule(s.n_bytes)
            for i, s in enumerate(storages)
            if call.first <= s.born < call.end
            and i not in call.outputs
            and (s.died is None or s.died > max(peak, call.end))
        )
        if held >= least:
            sizes.append((held, call))
    return sorted(sizes, key=lambda each: -each[0])


def _inside(path: str, model: nn.Module) -> list[str]:
    run = range_at(path)
    return [path] if run is None else children_of(run, dict(model.named_modules()))


def _candidate(
    study: StepStudy, call: ForwardCall, paths: Sequence[str], n: int, rewrite: Rewrite
) -> Candidate:
    """Candidate for a number of bands: tensors inside exist for one band at a time."""
    storages, n_events = study.trace.storages, len(study.usage)
    assert rewrite.window is not None
    halo_factor = rewrite.window.halo_factor(n, rewrite.parts)
    rest = 1 - halo_factor / rewrite.parts
    begin = study.begins.get(call.path, study.backward_start)
    given, result = storages[call.inputs[0]], storages[call.outputs[0]]
    band_bytes = int((1 - rest) * given.n_bytes)
    end = begin + 1
    changes = [(call.first, call.end, band_bytes), (call.first, result.born, result.n_bytes)]
    born = []
    for index, storage in enumerate(storages):
        died = n_events if storage.died is None else storage.died
        size = round_to_granule(storage.n_bytes)
        if call.first <= storage.born < call.end:
            born.append(storage.n_bytes)
            if index in call.outputs:
                continue
            changes.append((storage.born, min(died, call.end), -int(rest * size)))
            changes.append((call.end, min(died, begin), -size))
            changes.append((begin, died, -int(rest * size)))
            end = max(end, died)
    grad = None
    if given.category == "activations":  # the last one of its size
        behind = [s for s in _backward(study, paths, begin) if s.n_bytes == given.n_bytes]
        grad = max(behind, key=lambda s: s.born, default=None)
    if grad is not None:
        # The input's gradient exists from the first band on, where it is accumulated.
        changes.append((begin, grad.born, round_to_granule(grad.n_bytes)))
        end = max(end, grad.born + 1)
    for storage in _backward(study, paths, begin):
        died = n_events if storage.died is None else storage.died
        if storage.category == "gradients":  # of weights: of a band, beside those of all
            changes.append((begin, end, round_to_granule(storage.n_bytes)))
        elif storage is not grad:
            changes.append((storage.born, died, -int(rest * round_to_granule(storage.n_bytes))))
    if given.category == "activations" and given.died is not None:
        changes.append((max(given.died, call.end), end, given.n_bytes))
    changes.append((begin, end, band_bytes + int((1 - rest) * result.n_bytes)))
    for event, (kind, index) in enumerate(study.trace.events):
        inside = call.first <= event < call.end or event >= begin
        if kind == "call" and inside and _is_in(study.trace.calls[index].module, paths):
            workspace = int(study.usage[event] - study.usage[event - 1])
            changes.append((event, event + 1, -int(rest * workspace)))
    # The incoming gradient is needed until the last band.
    first = next(
        (s for s in storages if study.backward_start < s.born < begin <= (s.died or 0) <= end
         and s.n_bytes == result.n_bytes), None,
    )  # fmt: skip
    if first is not None and first.died is not None:
        changes.append((first.died, end, first.n_bytes))
    return Candidate(
        call.path, rewrite, begin, (call.first, call.end),
        [change for change in changes if change[1] > change[0]],
        recomputed_bytes=3 * sum(born), recomputed_ops=call.n_operators, halo_factor=halo_factor,
    )  # fmt: skip


def _backward(study: StepStudy, paths: Sequence[str], begin: int) -> Iterator[Storage]:
    """Yield the storages allocated in the backward pass of modules."""
    for storage in study.trace.storages:
        if storage.born >= begin and _is_in(storage.module, paths):
            yield storage


def _is_in(module: str, paths: Sequence[str]) -> bool:
    return any(not path or module == path or module.startswith(path + ".") for path in paths)
