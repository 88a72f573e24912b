"""The memory model of a method whose author wrote an estimator."""

from __future__ import annotations

from ..core.allocators import Device
from ..core.author_code import defined_at
from ..core.ledger import LedgerEstimator
from ..core.memory_model import MAX_BYTES, UNREACHABLE_BYTES, MemoryModel
from ..core.method_meta import MethodMeta
from ..core.units import format_bytes
from ..errors import EstimatorError
from .model_request import ModelRequest


def supports_device(meta: MethodMeta, device: Device) -> bool:
    """True if a method's estimator describes a device.

    A ledger describes both; a hand-written ``calc_max_slices`` describes CUDA, unless it
    names a keyword ``device``.
    """
    if meta.estimator is None:
        return False
    if device == "cuda" or isinstance(meta.estimator, LedgerEstimator):
        return True
    return "device" in meta.callbacks["calc_max_slices"].told


def declared_model(request: ModelRequest, device: Device) -> MemoryModel:
    """Memory model of a method whose author declared an estimator.

    A ledger gives it directly. A hand-written ``calc_max_slices`` is inverted by bisection
    on ``available_memory``; it may answer below 0 for amounts smaller than its fixed costs.

    The number of slices does not matter. The device is told to a ledger, and to an estimator that
    names ``device``.

    Raises
    ------
    EstimatorError
        At once, or later from the model's methods; the text names the method and the call. The
        estimator raised, did not return a number of slices, returned 0 for any amount of
        memory, some slices for one byte or fewer for more memory; or the ledger counted nothing.
    """
    meta = request.meta
    if (ledger := meta.ledger_model(*request.slices, request.parameters, device)) is not None:
        if ledger.bytes(1) == 0:
            raise EstimatorError(
                f"{meta.full_name}: its ledger {_name(meta)}{defined_at(meta.estimator)} counts no "
                "memory for a slice: it must count everything that is alive during the call, input "
                "and output included"
            )
        return ledger

    bound = meta.bound_estimator(*request.slices, request.parameters, device)

    def called() -> str:
        given = "".join(f", {name}={value!r}" for name, value in request.parameters.items())
        place = defined_at(meta.estimator)
        return f"{meta.full_name}: its estimator {_name(meta)}({_told(request)}{given}){place}"

    def contradicted(less: tuple[int, int], more: tuple[int, int]) -> EstimatorError:
        return EstimatorError(
            f"{called()} says {less[1]} slices for {less[0]} bytes, but {more[1]} for {more[0]}: "
            "more memory can never fit fewer slices"
        )

    model = MemoryModel.from_max_slices(lambda n_bytes: bound(n_bytes)[0], contradicted)
    needed = model.bytes(1)
    if needed >= UNREACHABLE_BYTES:
        raise EstimatorError(
            f"{called()} returns {bound(MAX_BYTES)[0]} slices however much memory there is "
            f"(asked up to {format_bytes(MAX_BYTES)})"
        )
    if needed <= 1:
        raise EstimatorError(
            f"{called()} says that {bound(1)[0]} slices fit in 1 byte: it must depend on "
            "available_memory"
        )
    return model


def _told(request: ModelRequest) -> str:
    return "slice_dim={}, other_dims={}, dtype={}".format(*request.slices)


def _name(meta: MethodMeta) -> str:
    return getattr(meta.estimator, "__name__", repr(meta.estimator))
