"""Choice of the source of a method's memory model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast, get_args

import numpy as np

from ..core.allocators import Device, round_to_granule
from ..core.arrays import ArraySpec
from ..core.author_code import defined_at, what_raised
from ..core.ledger import LedgerEstimator
from ..core.memory_model import MAX_BYTES, UNREACHABLE_BYTES, MemoryModel
from ..core.method_meta import MethodMeta
from ..core.units import format_bytes
from ..devices import Backend
from ..devices.backend import device_name
from ..errors import EstimatorError, UntraceableError, UsageError
from .model_request import ModelRequest, NoAnswerError, Origin, ResolvedModel
from .request_key import Environment, RequestKey, environment, request_key

if TYPE_CHECKING:  # imported only for measurements
    from ..block_effect.effect import BlockEffect
    from .probe_result import Probe
    from .recorded import Records

ENTRY_POINT_GROUP = "maxslices.estimators"
"""Entry points of packages that find the models of methods for one array module. The name of an
entry point is the module's (``array_module="torch"``), and its object is a `MethodTracer`."""
LOGGER = logging.getLogger("maxslices.plan")
MEASURED = "%s: its memory is measured, by runs on a few slices"
"""Message logged before a method is measured, which may take long."""
_INSTEAD = {
    "declared": "give calc_max_slices where it is registered, or let it be probed",
    "recorded": "measure it there (--estimator probed), or import records from there (maxslices "
    "records import)",
    "replayed": "let it be probed",
    "probed": "import records from one (maxslices records import)",
}
"""Next step if the last source that was tried has no answer."""


class ModelResolver:
    """Finder of memory models for one device.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Kind of the device.
    backend : Backend, optional
        The device, if present. Methods without an estimator are probed on it.
    records : Records, optional
        Earlier probes. For a device that is not present, records of any device of its kind are
        used.
    available_bytes : int, optional
        Largest memory that a method may take.
    side : mapping, optional
        Flats and darks as `ArraySpec`.
    forced : {"declared", "recorded", "replayed", "probed"}, optional
        The only source that may be used.
    """

    def __init__(
        self,
        device: Device,
        *,
        backend: Backend | None = None,
        records: Records | None = None,
        available_bytes: int = 0,
        side: Mapping[str, ArraySpec] | None = None,
        forced: str | None = None,
    ) -> None:
        if forced is not None and forced not in get_args(Origin):
            valid = ", ".join(get_args(Origin))
            raise UsageError(f"{forced!r} is not a source of estimates: use one of {valid}")
        self.device = device
        self.backend = backend
        self.records = records
        self._available_bytes = available_bytes
        self._side = dict(side or {})
        self._forced = forced
        self.resolved: list[tuple[ModelRequest, ResolvedModel]] = []
        """Requests and their answers, in order."""

    def asks_author(self, meta: MethodMeta) -> bool:
        """True if a method's own estimator is used, and nothing is measured or replayed."""
        return meta.estimator is not None and self._forced in (None, "declared")

    def resolve(self, request: ModelRequest) -> ResolvedModel:
        """Return a method's memory model: declared, else recorded, replayed or probed.

        Raises
        ------
        EstimatorError
            If no source has an answer, or a source fails. The message has the next step.
        """
        choice = self._resolve(request)
        LOGGER.info("%s: memory as %s", request.meta.name, choice.origin)
        self.resolved.append((request, choice))
        return choice

    def _resolve(self, request: ModelRequest) -> ResolvedModel:
        meta, reasons = request.meta, []
        if meta.side_data == "alone":  # the data pass through, and nothing else is allocated
            slice_bytes = math.prod(request.other_dims) * request.dtype.itemsize
            model, dims = MemoryModel.linear(0, slice_bytes), request.other_dims
            return ResolvedModel(model, "declared", output_dtype=request.dtype, output_dims=dims)
        sources = {
            "declared": self._declared,
            "recorded": self._recorded,
            "replayed": self._replayed,
            "probed": self._probed,
        }
        for origin in get_args(Origin) if self._forced is None else [self._forced]:
            try:
                answer = sources[origin](request)
            except NoAnswerError as error:
                reasons.append(str(error))
            else:
                is_declared = answer.origin.startswith("declared")
                return answer if is_declared else self._completed(request, answer)
        size = "x".join(map(str, request.other_dims))
        unit = "projections" if request.slice_dim == 0 else "sinograms"
        where = device_name(self.backend) if self.backend else f"a {self.device} device"
        subject = f"{meta.full_name} for {unit} of {size} {request.dtype} on {where}"
        raise EstimatorError(f"{subject}: {', '.join(filter(None, reasons))}: {_INSTEAD[origin]}")

    def learn(self, request: ModelRequest, n_slices: int, measured_bytes: int) -> bool:
        """Raise a method's record to a measured peak. Returns True if it was too low."""
        if self.backend is None or self.records is None:
            return False
        key = request_key(request, self._side)
        here = environment(self.backend, request.meta.function)
        entry = self.records.find(key, here)
        if entry is None or entry.probe.model().bytes(n_slices) >= measured_bytes:
            return False
        self.records.add(key, here, entry.probe.corrected(n_slices, measured_bytes))
        return True

    def _on_host(self, request: ModelRequest) -> ResolvedModel:
        """Memory on a GPU of a method that works on the host: its input and its result.

        Side results count as one row of each slice in double precision, as for a rotation axis.
        """
        meta, parameters = request.meta, request.parameters
        sizes = [math.prod(request.other_dims) * request.dtype.itemsize]
        if meta.side_results:
            sizes.append(request.other_dims[1] * np.dtype(np.float64).itemsize)
        else:
            output_dtype = meta.output_dtype(*request.slices, **parameters)
            dims = meta.output_other_dims(*request.slices[:2], **parameters)
            sizes.append(math.prod(dims) * output_dtype.itemsize)
        model = MemoryModel(lambda n: sum(round_to_granule(n * size) for size in sizes))
        why = "it works on the host, and only its input and result are on the device"
        return ResolvedModel(model, "declared", why)

    def _declared(self, request: ModelRequest) -> ResolvedModel:
        if request.meta.estimator is None:
            raise NoAnswerError("no memory estimator is declared")
        # An estimator for CUDA alone is also used for a CPU, which the plan reports.
        origin = "declared" if supports_device(request.meta, self.device) else "declared for CUDA"
        return ResolvedModel(declared_model(request, self.device), origin)

    def _recorded(self, request: ModelRequest) -> ResolvedModel:
        """Answer from the user's records, else from those that come with the method's package."""
        key = request_key(request, self._side)
        answer = None if self.records is None else self._kept(request, key, self.records)
        if answer is not None:
            return answer
        if self.device != "cuda" or (self.backend is not None and self._forced is None):
            raise NoAnswerError("nothing is recorded")
        from .shipped_records import find_shipped

        return find_shipped(request.meta, key)

    def _kept(
        self, request: ModelRequest, key: RequestKey, records: Records
    ) -> ResolvedModel | None:
        """Answer from the user's records, or None if they do not cover the request."""
        is_cpu, how = self.device == "cpu", ""
        if self.backend is None:

            def is_alike(place: Environment) -> bool:
                return (place.device == "cpu") == is_cpu

            entry = records.newest(key, is_alike)
            if entry is None:
                from .shipped_records import find_by_sizes

                return find_by_sizes(records, key, is_alike)
        else:
            here = environment(self.backend, request.meta.function)
            entry = records.find(key, here)
            if entry is None and not is_cpu:
                entry, how = records.of_other_card(key, here), ", as on any card"
            total = request.total_slices
            if entry is None or not entry.probe.covers(self._available_bytes, total):
                return None
        return ResolvedModel.of_probe(
            entry.probe, "recorded", f"measured on {entry.place.device}{how}"
        )

    def _replayed(self, request: ModelRequest) -> ResolvedModel:
        is_torch = request.meta.array_module == "torch" and self.device == "cuda"
        if not is_torch or importlib.util.find_spec("torch") is None:
            raise NoAnswerError(
                "replayed are methods for torch (array_module='torch'), on a CUDA device, where "
                "torch is installed"
                if self._forced
                else ""
            )
        try:
            trace = find_tracer("torch")
            if trace is None:
                name = request.meta.full_name
                raise UntraceableError(f"{name}: no installed package traces methods for torch")
            return trace(request, self._side, "" if self.backend is None else self.backend.name)
        except UntraceableError as error:
            if self._forced or self.backend is None:
                raise
            return self._probed(request, f"it cannot be replayed ({error}); ")

    def _probed(self, request: ModelRequest, before: str = "") -> ResolvedModel:
        """Measure a method. `before` is the first part of the answer's explanation."""
        if self.backend is None and self.device == "cuda" and request.meta.host_only:
            return self._on_host(request)
        if self.backend is None:
            raise NoAnswerError("it cannot be measured without such a device here")
        LOGGER.info(MEASURED, request.meta.name)
        from .probe import probe

        measured = probe(
            request, self.backend, available_bytes=self._available_bytes, supplied=self._side
        )
        measured = replace(measured, blocks=self._compared(request, self.backend, measured))
        if self.records is not None:
            where = environment(self.backend, request.meta.function)
            self.records.add(request_key(request, self._side), where, measured)
        ran = f"{before}probed in {measured.duration_s:.2g} s, {len(measured.rungs)} runs"
        return ResolvedModel.of_probe(measured, "probed", "; ".join([ran, *measured.notes]))

    def _compared(
        self, request: ModelRequest, backend: Backend, measured: Probe
    ) -> BlockEffect | str:
        """Compare blocks of two sizes, or return the reason why not. Warns of a missing halo."""
        from ..block_effect.compare_blocks import study_blocks

        fitting = measured.model().max_slices(self._available_bytes, request.total_slices)
        effect = study_blocks(
            request, backend, pace_s=measured.pace_s(), fitting_slices=fitting, side=self._side
        )
        if isinstance(effect, str):
            return effect and f"blocks of two sizes were not compared: {effect}"
        if effect.halo is not None:
            warnings.warn(f"{request.meta.full_name}: {effect}", stacklevel=2)
        return effect

    def _completed(self, request: ModelRequest, answer: ResolvedModel) -> ResolvedModel:
        """Add the reason for this source, and drop dtype and dims that the author declares."""
        meta, (how, *details) = request.meta, answer.why.split("\n")
        is_open = meta.estimator is None
        missing = "it declares no estimator" if is_open else "as asked for"
        why = f"{missing}; {how}{f'; {answer.blocks}' if answer.blocks else ''}"
        declared = meta.declared_dtype
        is_guess = declared is None or getattr(declared, "is_guess", False)
        return replace(
            answer,
            why="\n".join([why, *details]),
            output_dtype=answer.output_dtype if is_open and is_guess else None,
            output_dims=None if meta.declares_dims else answer.output_dims,
        )


class MethodTracer(Protocol):
    """Find the memory model of a method without running it."""

    def __call__(
        self, request: ModelRequest, supplied: Mapping[str, ArraySpec], device: str
    ) -> ResolvedModel:
        """Trace a method.

        Parameters
        ----------
        request : ModelRequest
            The method with its parameters and data.
        supplied : mapping
            Flats and darks as `ArraySpec`, which a model does not count.
        device : str
            Name such as "cuda:0", or "" if the device is not present.

        Returns
        -------
        ResolvedModel
            Its origin is "replayed". Its `why` describes how it was traced, and which parts were
            not traced exactly.

        Raises
        ------
        UntraceableError
            If only running the method shows its allocations.
        """


@cache
def find_tracer(array_module: str) -> MethodTracer | None:
    """Tracer of an array module's methods, or None if no installed package has one.

    Raises
    ------
    UntraceableError
        If its package fails to import.
    """
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=array_module):
        try:
            return cast(MethodTracer, entry_point.load())
        except Exception as error:
            raise UntraceableError(
                f"the estimator of {array_module} methods cannot be used, because importing "
                f"{entry_point.value} failed: {what_raised(error)}"
            ) from error
    return None


def supports_device(meta: MethodMeta, device: Device) -> bool:
    """True if a method's estimator describes a device.

    A ledger describes both devices. A hand-written ``calc_max_slices`` describes CUDA, unless it
    has a parameter ``device``.
    """
    if meta.estimator is None:
        return False
    if device == "cuda" or isinstance(meta.estimator, LedgerEstimator):
        return True
    return "device" in meta.callbacks["calc_max_slices"].context_args


def declared_model(request: ModelRequest, device: Device) -> MemoryModel:
    """Memory model of a method whose author declared an estimator.

    A ledger gives it directly. A hand-written ``calc_max_slices`` is inverted by bisection on
    ``available_memory``. It may return less than 0 for amounts smaller than its fixed costs.

    The number of slices in the request does not matter. A ledger, and an estimator with a parameter
    ``device``, are called for the device.

    Raises
    ------
    EstimatorError
        Here, or later from the model's methods. The estimator raised, did not return a number of
        slices, returned 0 for any amount of memory, some slices for one byte, or fewer slices for
        more memory. Or the ledger counted nothing. The message names the method and the call.
    """
    meta = request.meta
    name = getattr(meta.estimator, "__name__", repr(meta.estimator))
    if (ledger := meta.ledger_model(*request.slices, request.parameters, device)) is not None:
        if ledger.bytes(1) == 0:
            raise EstimatorError(
                f"{meta.full_name}: its ledger {name}{defined_at(meta.estimator)} counts no "
                "memory for a slice: it must count everything that is alive during the call, input "
                "and output included"
            )
        return ledger

    bound = meta.bound_estimator(*request.slices, request.parameters, device)

    def estimator_call() -> str:
        parameters = "".join(f", {key}={value!r}" for key, value in request.parameters.items())
        arguments = "slice_dim={}, other_dims={}, dtype={}".format(*request.slices)
        place = defined_at(meta.estimator)
        return f"{meta.full_name}: its estimator {name}({arguments}{parameters}){place}"

    def contradicted(less: tuple[int, int], more: tuple[int, int]) -> EstimatorError:
        return EstimatorError(
            f"{estimator_call()} says {less[1]} slices for {less[0]} bytes, but {more[1]} for "
            f"{more[0]}: more memory can never fit fewer slices"
        )

    model = MemoryModel.from_max_slices(lambda n_bytes: bound(n_bytes)[0], contradicted)
    needed = model.bytes(1)
    if needed >= UNREACHABLE_BYTES:
        raise EstimatorError(
            f"{estimator_call()} returns {bound(MAX_BYTES)[0]} slices however much memory there is "
            f"(asked up to {format_bytes(MAX_BYTES)})"
        )
    if needed <= 1:
        raise EstimatorError(
            f"{estimator_call()} says that {bound(1)[0]} slices fit in 1 byte: it must depend on "
            "available_memory"
        )
    return model
