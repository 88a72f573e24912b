"""Tests for all methods of a package, as a class to subclass.

A package of methods writes::

    class TestMyMethods(MethodConformance):
        package = "my_methods"
        cases = [Case("blur", (64, 60, 72)), Case("blur", (50, 37, 41), "uint16")]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from ..checking.case import Case, Situation
from ..checking.estimate_check import check_trial, trial_of
from ..checking.result_in_blocks import differences_between_blocks, proposed_halo
from ..core.allocators import Device
from ..core.declaration import ReturnedOutput
from ..core.method_meta import MethodMeta, with_type
from ..core.method_registry import Registry, registry
from ..devices import require_libraries
from ..errors import DeviceError, MaxslicesError, UsageError
from ..estimate import ModelRequest, declared_model
from ..trial.trial import Trial, check_given, require_slice_dim
from .plugin import MaxSlices, skip_without

_MAX_WIDTH = 2561
"""Largest detector width for which estimators are called: the common 2560, made odd."""
_AVAILABLE_BYTES = (0, 1, 513, *(10**power for power in range(3, 16)))
"""Amounts of memory for which estimators are called: zero, odd amounts, up to a petabyte."""
_DEVICES: tuple[Device, ...] = ("cpu", "cuda")


class MethodConformance:
    """Conformance tests, to be subclassed with the name of a package and its cases.

    Estimates must be within bounds of the measured peak for each case, axis and random shape, must
    never decrease, and must be whole numbers of slices. Results must not depend on the block size
    and must have the declared dtype and dims. Methods must not modify their input. A method of the
    package without a case fails.
    """

    package: ClassVar[str] = ""
    """Package whose methods must all have a case."""
    methods: ClassVar[Registry] = registry
    """Registry of the methods."""
    cases: ClassVar[Sequence[Case]] = ()
    """Small cases, quick on a CPU."""
    smallest_dim: ClassVar[int] = 1
    """Smallest detector dim of random shapes. Increase it for methods that need more than one
    pixel, such as binning."""
    gpu_cases: ClassVar[Sequence[Case]] = ()
    """Cases of real size. Their tests have the mark ``gpu``, and are skipped without a GPU."""

    @classmethod
    def required_methods(cls) -> list[MethodMeta]:
        """List the methods of the package.

        Raises
        ------
        UsageError
            If no method is registered by the package.
        """
        if not cls.package:
            return []
        below = f"{cls.package}."
        metas = [meta for meta in cls.methods if f"{meta.module}.".startswith(below)]
        if not metas:
            raise UsageError(
                f"no method is registered by {cls.package!r} or a module below it: "
                "use the name under which the package is imported, and import it in the test file"
            )
        return metas

    @classmethod
    def situations(cls, cases: Sequence[Case], device: str | None = None) -> Iterator[Situation]:
        """Yield each case along each of its axes."""
        for case in cases:
            if not isinstance(case, Case):
                raise UsageError(f"cases must be made with Case(...), not {with_type(case)}")
            case.check()
            meta = cls.methods.get(case.method)
            dims = meta.slice_dims()
            check_given(meta, case.parameters)
            if case.slice_dim is not None:
                require_slice_dim(meta, case.slice_dim)
            for slice_dim in dims if case.slice_dim is None else (case.slice_dim,):
                yield Situation(case, slice_dim, device)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test for each case and axis, or for each method."""
        try:
            self._parametrize(metafunc)
        except MaxslicesError as error:  # a mistake in the class or its cases
            text = f"{type(self).__name__}: {error}"
            raise pytest.Collector.CollectError(text) from None

    def _parametrize(self, metafunc: pytest.Metafunc) -> None:
        names = metafunc.fixturenames
        if "situation" in names:
            situations: list[Any] = list(self.situations(self.cases))
            if "on_real_sizes" in names:
                gpu = self.situations(self.gpu_cases, "cuda")
                situations += [pytest.param(s, id=f"{s}-gpu", marks=pytest.mark.gpu) for s in gpu]
            metafunc.parametrize("situation", situations, ids=str, scope="class")
        if "required_method" in names:
            metafunc.parametrize("required_method", self.required_methods(), ids=lambda m: m.name)
        if "tried_method" in names:
            tried = sorted({self.methods.get(case.method).full_name for case in self.cases})
            metafunc.parametrize("tried_method", tried)

    @pytest.fixture
    def on_real_sizes(self) -> None:
        """Mark a test that is also run at real sizes on a GPU."""

    def trial(self, situation: Situation, max_slices: MaxSlices) -> Trial:
        """Set up a situation, or skip the test if its device or library is missing."""
        case, device = situation.case, situation.device or max_slices.settings.device
        if situation.device is not None:
            skip_without(situation.device)
        meta = self.methods.get(case.method)
        try:
            require_libraries([meta])
        except DeviceError as error:
            pytest.skip(str(error))
        return trial_of(
            meta, case.spec, situation.slice_dim, device, case.parameters, case.make_data
        )

    def test_has_a_case(self, required_method: MethodMeta) -> None:
        """Every method of the package has a case."""
        tried = {self.methods.get(case.method).full_name for case in self.cases}
        if required_method.full_name not in tried:
            _require(
                False,
                f"{required_method.full_name} has no case: add "
                f"Case({required_method.name!r}, shape=(64, 60, 72)) to the cases, one for each "
                "dtype and each parameter that changes its memory",
            )

    def test_estimate_is_within_bounds(
        self, situation: Situation, max_slices: MaxSlices, on_real_sizes: None
    ) -> None:
        """The estimate for the measured peak is about the number of slices that were run."""
        settings = max_slices.settings
        trial = self.trial(situation, max_slices)
        result = check_trial(trial, settings.lower, settings.upper, trace=None)
        max_slices.note(result)
        _require(result.ok, str(result))

    def test_output_is_as_declared(
        self, situation: Situation, max_slices: MaxSlices, on_real_sizes: None
    ) -> None:
        """The result has the declared dims and dtype."""
        trial = self.trial(situation, max_slices)
        meta, output = trial.meta, trial.call(trial.data())
        if meta.side_results:
            values = output if len(meta.side_results) > 1 else (output,)
            _require(
                len(values) == len(meta.side_results),
                f"{meta.full_name} declares the side results {', '.join(meta.side_results)}, "
                f"but returned {len(values)} values",
            )
            return
        trial.output = ReturnedOutput.of(output)
        fault = trial.wrong_output()
        _require(not fault, f"{meta.full_name} {fault}")

    def test_input_is_not_modified(self, situation: Situation, max_slices: MaxSlices) -> None:
        """A call does not change data, flats, darks and angles."""
        trial = self.trial(situation, max_slices)
        side, data = trial.side(), trial.data()
        before = {name: np.array(trial.on_host(value)) for name, value in side.items()}
        trial.call(data, side)
        changed = ["data"] if trial.has_changed(data) else []
        changed += [
            name
            for name, value in side.items()
            if not np.array_equal(np.asarray(trial.on_host(value)), before[name])
        ]
        _require(not changed, f"{trial.meta.full_name} modified its input: {', '.join(changed)}")

    def test_block_size_does_not_matter(self, situation: Situation, max_slices: MaxSlices) -> None:
        """Blocks of 1 and 7 slices, with their halo, give the same result as one block."""
        trial = self.trial(situation, max_slices)
        if trial.sampled:
            return  # it is called once, with its sample slices
        faults = differences_between_blocks(trial, (1, 7), situation.case.tolerance)
        if faults:
            proposal = proposed_halo(trial)
            _require(False, f"{trial.meta.full_name}: {'; '.join(faults)}{proposal}")

    def test_estimate_never_decreases(self, situation: Situation) -> None:
        """More slices never need less memory."""
        meta, case = self.methods.get(situation.case.method), situation.case
        slice_dim, dtype = situation.slice_dim, case.spec.dtype
        dims, n_slices = case.spec.other_dims(slice_dim), case.shape[slice_dim]
        request = ModelRequest(meta, slice_dim, dims, dtype, case.parameters, n_slices)
        for device in _DEVICES:
            model = declared_model(request, device)
            counts = [*range(1, 130), 255, 256, 257, 1000, 1801, 10_000]
            sizes = [model.bytes(n) for n in counts]
            falls = [i for i in range(1, len(sizes)) if sizes[i] < sizes[i - 1]]
            for i in falls[:1]:
                _require(
                    False,
                    f"{meta.full_name} on {device}: {counts[i]} slices are estimated to need "
                    f"{sizes[i]:,} bytes, but {counts[i - 1]} slices {sizes[i - 1]:,}",
                )

    def test_more_memory_fits_no_fewer_slices(self, situation: Situation) -> None:
        """Estimates never decrease with memory, for several shapes and both devices."""
        meta, case = self.methods.get(situation.case.method), situation.case
        slice_dim, dtype = situation.slice_dim, case.spec.dtype
        first, second = case.spec.other_dims(slice_dim)
        shapes = (
            (first, second),
            (first + 1, second + 2),
            (2 * first + 1, 2 * second + 1),
            (max(first, 1801), max(second, _MAX_WIDTH)),
        )
        for dims, device in itertools.product(shapes, _DEVICES):
            answers = [
                meta.fitting_slices(slice_dim, dims, dtype, size, case.parameters, device)[0]
                for size in _AVAILABLE_BYTES
            ]
            _require(
                answers == sorted(answers),
                f"{meta.full_name} on {device}: with more memory, fewer slices are estimated to "
                f"fit: {dict(zip(_AVAILABLE_BYTES, answers, strict=True))}",
            )

    def test_estimate_at_random_shapes(self, tried_method: str, max_slices: MaxSlices) -> None:
        """Estimates are within bounds for random shapes (with Hypothesis)."""
        pytest.importorskip("hypothesis")
        from .random_shapes import try_random_shapes

        cases = [c for c in self.cases if self.methods.get(c.method).full_name == tried_method]
        n_methods = len({self.methods.get(case.method).full_name for case in self.cases})
        share = max(1, math.ceil(max_slices.settings.examples / n_methods))
        situations = list(self.situations(cases))
        try_random_shapes(self.trial, situations, max_slices, share, self.smallest_dim)


def _require(holds: bool, message: str) -> None:
    """Fail with a message and without a traceback."""
    if not holds:
        pytest.fail(message, pytrace=False)
