"""Side data of steps: flats and darks, and side results of earlier steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.author_code import defined_at, raised_at, what_raised
from ...devices import Backend, call_method
from ...errors import MaxslicesError, MethodError
from ...io import SideName, Source
from ...io.access import SIDE_NAMES, FlatWeights
from ...pipeline import Reference, Step
from ...pipeline.requirements import CHANGED_DTYPE, changes_frames


@dataclass(slots=True)
class SideResults:
    """Side results so far, for references and for the report."""

    by_reference: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(step id, name under its side_outputs) -> value."""
    by_method: dict[str, Any] = field(default_factory=dict)
    """``method.name`` -> value. If a method runs twice, ``method_2.name`` is from the second."""
    _methods: list[str] = field(default_factory=list)

    def keep(self, step: Step, value: Any) -> None:
        """Keep the side results of a step: one value, or a tuple if it declares several.

        Raises
        ------
        MethodError
            If the number of values differs from its declaration.
        """
        names, method = step.meta.side_results, step.meta.name
        values = (value,)
        if len(names) != 1 and isinstance(value, tuple | list):
            values = tuple(value)
        if len(values) != len(names):
            raise MethodError(
                f"{method} returned {len(values)} side results, but declares {len(names)}: "
                f"{', '.join(names)}{defined_at(step.meta.function)}"
            )
        self._methods.append(method)
        runs = self._methods.count(method)
        label = method if runs == 1 else f"{method}_{runs}"
        for name, item in zip(names, values, strict=True):
            self.by_method[f"{label}.{name}"] = item
            if step.id is not None and name in step.side_outputs:
                self.by_reference[step.id, step.side_outputs[name]] = item

    def angles_after(
        self, steps: Iterable[Step], angles: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """Angles after some steps, given those before; None if the scan has none."""
        for step in steps:
            if angles is not None and step.meta.output_angles is not None:
                values = {name: self.resolve(value) for name, value in step.parameters.items()}
                angles = step.meta.angles_after(angles, values)
        return angles

    def resolve(self, value: Any) -> Any:
        """Value of a parameter or of the reference in its place."""
        if isinstance(value, Reference):
            return self.by_reference[value.step_id, value.name]
        return value


Frames = Mapping[SideName, NDArray[Any]]


@dataclass(slots=True)
class SideFrames:
    """Flats and darks of a scan, as stored or as changed by methods."""

    source: Source
    """The scan."""
    steps: Sequence[Step]
    """All steps of the pipeline."""
    backend: Backend
    """The device."""
    resolve: Callable[[Any], Any]
    """Returns the value of a parameter or of a reference."""
    weights: FlatWeights | None = None
    """Weights of the flats for each projection; None if all use their mean."""
    _changed: dict[int, Frames] = field(default_factory=dict)
    """Index of a step -> the frames that it has returned, on the host."""

    def changed_by(self, index: int) -> int | None:
        """Index of the last step before this one that changes the frames; None without one."""
        before = [i for i in range(index) if changes_frames(self.steps, i)]
        return before[-1] if before else None

    def weights_after(self, index: int) -> FlatWeights | None:
        """Weights of the flats for a step; None if all projections use their mean.

        If an earlier step changed the flats, the step gets the means of groups of them.
        """
        changing = [self.steps[i] for i in range(index) if changes_frames(self.steps, i)]
        if self.weights is None or not changing:
            return self.weights
        if any(step.meta.side_data == "alone" for step in changing):
            return None
        return self.weights[0], np.eye(len(self.weights[1]))

    def read(
        self, name: SideName, changed_by: int | None, slice_dim: int, first: int, last: int
    ) -> NDArray[Any]:
        """Frames for a block, on the host; see `Source.read_side`."""
        if changed_by is not None:
            frames = self._frames(changed_by)[name]
            return frames if slice_dim == 0 else np.ascontiguousarray(frames[:, first:last])
        if self.backend.kind == "cuda":
            window = self.source.side_window(name, slice_dim, first, last)
            if window is not None:  # it is copied to the device anyway
                return window
        return self.source.read_side(name, slice_dim, first, last)

    def _frames(self, index: int) -> Frames:
        if index not in self._changed:
            self._changed[index] = {name: self._change(index, name) for name in self._names()}
        return self._changed[index]

    def _names(self) -> list[SideName]:
        return [side for side in SIDE_NAMES if getattr(self.source, side) is not None]

    def _change(self, index: int, name: SideName) -> NDArray[Any]:
        """Let a step change the flats or darks."""
        step, earlier = self.steps[index], self.changed_by(index)
        frames = self.read(name, earlier, 0, 0, 1)
        if step.meta.side_data == "too":
            if name == "flats" and self.weights_after(index) is not None:
                means = frames if earlier is not None else self._group_means(frames)
                changed = [self._put_through(index, name, mean[np.newaxis]) for mean in means]
                return np.concatenate(changed)
            if earlier is None:
                frames = frames.mean(axis=0, dtype=CHANGED_DTYPE, keepdims=True)
        return self._put_through(index, name, frames)

    def _group_means(self, flats: NDArray[Any]) -> NDArray[np.float32]:
        """Mean of each group of flats, scaled by the beam's current if that was recorded."""
        assert self.weights is not None
        means = np.zeros((len(self.weights[1]), *flats.shape[1:]), CHANGED_DTYPE)
        for mean, weights in zip(means, self.weights[1], strict=True):
            for index in np.flatnonzero(weights):
                mean += flats[index] * CHANGED_DTYPE.type(weights[index])
        return means

    def _put_through(self, index: int, name: SideName, frames: NDArray[Any]) -> NDArray[Any]:
        """Apply a step to frames; return one frame."""
        step = self.steps[index]
        facts = {"slice_dim": 0, "first_slice": 0}
        parameters = {key: self.resolve(value) for key, value in step.parameters.items()}
        parameters |= {key: facts[key] for key in step.meta.supplied if key in facts}
        try:
            data = self.backend.to_device(np.ascontiguousarray(frames))
            result = self.backend.to_host(call_method(step.meta, data, parameters, self.backend))
        except MaxslicesError:
            raise
        except Exception as error:
            raise MethodError(
                f"{step.meta.name} failed on the {name}: {what_raised(error)}"
                f"{raised_at(error, step.meta.function)}"
            ) from error
        wanted = (1, *frames.shape[1:])
        if result.shape != wanted:
            shapes = ["x".join(map(str, shape)) for shape in (result.shape, wanted)]
            raise MethodError(
                f"{step.meta.name} returned {name} of {shapes[0]}: it must return {shapes[1]}"
                f"{defined_at(step.meta.function)}"
            )
        return result.astype(CHANGED_DTYPE, copy=False)
