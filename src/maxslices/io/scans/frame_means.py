"""Means of flats and darks: frames that are unlike the others, and weights of flats in time.

Each flat and each dark is read once, and the means of its tiles are kept. From these follow

* **odd frames**, which are reported. A frame is odd if its mean differs from the median of its
  group by more than six standard deviations (from the median absolute deviation) and by more than
  2 % of the beam for a flat, 0.2 % for a dark. A group of fewer than three frames is compared with
  all. A whole group of flats is odd if its beam is below a fifth of the brightest group's.
* **groups** of flats: the flats between the same two projections. The difference of two groups is
  the root mean square, over the tiles, of the difference of their means. Groups differ if this is
  more than three standard errors and more than 0.1 % of the beam. The standard error comes from the
  scatter of frames within groups. Odd frames do not count.
* **weights in time**, where groups differ. A projection between two groups, number i of the n
  projections between these (from 0), has the first group's mean with weight 1 - t and the second's
  with weight t = (i + 1) / (n + 1). Projections before the first group have that group's mean, and
  those after the last group the last's.

Some rows of some projections are read too. Projections with less than a hundredth of the others'
beam are reported: the shutter was closed, or the scan ended before they were written. A change of
both edges of the field of view by the same factor, which the flats do not show, is reported too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..access import SIDE_NAMES, FlatWeights, SideName
from ..frames.frames import Selection

_TILES = 8
"""Tiles along each axis of a frame."""
_DEVIATIONS, _ERRORS = 6.0, 3.0
"""Smallest difference of an odd frame in standard deviations, and of groups in standard errors."""
_ODD_SHARE: dict[SideName, float] = {"flats": 0.02, "darks": 0.002}
"""Smallest difference of an odd frame as a share of the beam."""
_LEAST_BEAM = 0.2
"""Share of the brightest group's beam below which a group of flats is odd."""
_LEAST_CHANGE = 1e-3
"""Smallest difference of groups as a share of the beam, which is an error of the attenuation."""
_LEAST_UNPLACED = 1e-2
"""Share of the beam by which flats of unknown order change before this is reported."""
_LEAST_SIGNAL = 0.01
"""Smallest beam as a share of the flats' level. Smaller differences to the darks are noise."""
_CAMERA_LEVELS = [2**n_bits for n_bits in (8, 10, 12, 14, 16)]
_SATURATED = 0.01
"""Share of pixels with the largest value of a camera above which saturation is reported. Flats of
8 bits have 0.4 % of their pixels at each value if all values are equally frequent."""
_N_ROWS, _N_FRAMES, _ROWS = 256, 16, 16
"""Number of projections that are checked if single rows, or only whole frames, can be read, and
number of their rows. Of 1801 frames of 2160 rows, either way reads less than 1 %. It finds any 0.4
or 7 % of a scan in sequence."""
_LIKE_EDGES, _LEAST_EDGES = 0.03, 0.1
"""Largest difference of two edges in air, and smallest reported change of both. Noise of 20,000
photons in 5 columns and 16 rows is 0.1 %, of 20 photons 2.5 %. A ring with top-up keeps its current
within 1 %."""
_MOST_NAMED = 5
"""Largest number of odd frames that are reported one by one."""

Means = NDArray[np.float64]


class FrameMeans:
    """Means of the flats and darks of a scan, which are read at their first use.

    Parameters
    ----------
    sides : mapping of str to Selection or None
        Flats and darks of the source.
    projections : ndarray of int
        Index in the scan of each projection that is read.
    places : mapping of str to ndarray or None
        Number of projections before each flat, and before each dark; None if unknown.
    currents : (ndarray, ndarray), optional
        Beam current of each projection and of each flat, which scales the flats.
    data : Selection, optional
        The projections.
    """

    def __init__(
        self,
        sides: Mapping[SideName, Selection | None],
        projections: NDArray[np.int64],
        places: Mapping[SideName, NDArray[np.int64] | None],
        currents: tuple[Means, Means] | None = None,
        data: Selection | None = None,
    ) -> None:
        self._sides, self._projections, self._places = dict(sides), projections, dict(places)
        self._currents, self._data = currents, data

    @cached_property
    def tiles(self) -> dict[SideName, Means]:
        """Means of the tiles of each frame, (frames, tiles)."""
        return {side: means for side, (means, _) in self._read.items()}

    @cached_property
    def _read(self) -> dict[SideName, tuple[Means, float]]:
        """Means of tiles, and the largest share of saturated pixels, of flats and of darks."""
        return {
            side: _tile_means(selection)
            for side, selection in self._sides.items()
            if selection is not None
        }

    @cached_property
    def flat_weights(self) -> FlatWeights | None:
        """Weights of the flats for each projection; None if all projections have the same mean.

        They are the product of two arrays. The first, (projections, groups), contains the weights
        in time multiplied by the beam current of the projection. The second, (groups, flats),
        averages the flats of a group, each divided by its current.
        """
        places, currents = self._places["flats"], self._currents
        if currents is None and (places is None or len(np.unique(places)) < 2):
            return None
        flats = self._signal()
        of_projection, of_flat = currents or (np.ones(len(self._projections)), np.ones(len(flats)))
        group = np.zeros(len(flats), np.int64)
        if places is not None:
            group = np.unique(places, return_inverse=True)[1]
            keep = ~np.isin(np.arange(len(flats)), list(self._odd("flats")))
            means = flats / of_flat[:, None]
            beam = self._beam() / float(np.median(of_flat))
            if not _largest_change(means[keep], group[keep], _LEAST_CHANGE, beam):
                group[:] = 0
        n_groups = int(group.max()) + 1
        if n_groups == 1 and currents is None:
            return None
        in_time = np.ones((len(self._projections), 1))
        if n_groups > 1 and places is not None:
            in_time = _weights_in_time(self._projections, np.unique(places))
        members = (group == np.arange(n_groups)[:, None]) / of_flat
        members /= np.bincount(group)[:, None]
        return in_time * of_projection[:, None], members

    def warnings(self, sides: Iterable[str]) -> list[str]:
        """Warnings about flats or darks, if they are in `sides`."""
        texts = []
        if "flats" in sides and "flats" in self.tiles and not (self._signal() > 0).any():
            texts.append(
                "the flats are nowhere brighter than the darks: look at them with `maxslices info "
                "--picture`; the two may be exchanged, or were taken with the shutter closed"
            )
        if "flats" in sides and "flats" in self.tiles and self._read["flats"][1] > _SATURATED:
            texts.append(
                f"flats: up to {self._read['flats'][1]:.0%} of a frame's pixels have the camera's "
                "largest value: they are saturated, and the correction is wrong there"
            )
        for side in (each for each in SIDE_NAMES if each in sides and each in self.tiles):
            means, odd = self.tiles[side].mean(axis=1), self._odd(side)
            rest = np.delete(means, list(odd)) if len(odd) < len(means) else means
            texts += [
                f"{side}: frame {frame} of {len(means)}, counted from 0, has a mean of "
                f"{means[frame]:.6g}, and the others have {np.median(rest):.6g}: {side}: "
                f'{{frames: "all but {frame}"}} in the loader leaves it out'
                for frame in sorted(odd)[:_MOST_NAMED]
            ]
            if len(odd) > _MOST_NAMED:
                texts.append(f"{side}: {len(odd) - _MOST_NAMED} more frames are unlike the others")
            texts += self._unweighted(side, np.delete(np.arange(len(means)), list(odd)))
        return texts + self._projection_warnings

    @cached_property
    def _projection_warnings(self) -> list[str]:
        """Projections without beam, and a beam that changes during the scan."""
        if self._data is None or "flats" not in self.tiles:
            return []
        n_frames, n_rows, n_columns = self._data.spec.shape
        n_read = _N_ROWS if self._data.frames.reads_rows else _N_FRAMES
        frames = np.unique(np.linspace(0, n_frames - 1, n_read).astype(int))
        first = max(0, n_rows // 2 - _ROWS // 2)
        last = min(n_rows, first + _ROWS)
        band = np.empty((1, last - first, n_columns), self._data.spec.dtype)
        columns = np.empty((len(frames), n_columns))
        for i, frame in enumerate(frames.tolist()):
            self._data.read((frame, frame + 1), (first, last), band)
            columns[i] = band.mean(axis=(0, 1), dtype=np.float64)
        darks = self.tiles.get("darks")
        columns -= 0 if darks is None else np.median(darks)
        signal = columns.mean(axis=1)
        usual = np.nanmedian(signal)
        if usual <= _LEAST_SIGNAL * self._beam():  # these rows are opaque
            return []
        dark = np.flatnonzero(signal < _LEAST_SIGNAL * usual)
        texts = []
        if len(dark):
            texts.append(
                f"projections: {len(dark)} of {len(frames)} checked frames have no beam, "
                f"from frame {frames[dark[0]]} to {frames[dark[-1]]}. Read the scan without them: "
                "`preview` in the loader, or an image key of 3"
            )
        lit = np.delete(np.arange(len(frames)), dark)
        change = self._change_at_edges(columns[lit], frames[lit])
        if change > _LEAST_EDGES:
            texts.append(
                f"projections: both edges change by {change:.0%} during the scan, which the flats "
                "do not show. The beam or the exposure changes, or the sample reaches beyond both "
                "edges"
            )
        return texts

    def _change_at_edges(self, columns: Means, frames: NDArray[np.int64]) -> float:
        """Change of the signal at both edges, as a share; 0 where the edges differ."""
        width = max(2, columns.shape[1] // 50)
        edges = np.stack([columns[:, :width].mean(axis=1), columns[:, -width:].mean(axis=1)])
        edges /= np.maximum(np.median(edges, axis=1, keepdims=True), _LEAST_SIGNAL * self._beam())
        if np.percentile(np.abs(edges[0] - edges[1]), 95) > _LIKE_EDGES:
            return 0.0
        level = edges.mean(axis=0)
        if self.flat_weights is not None:
            expected = self.flat_weights[0][frames] @ (
                self.flat_weights[1] @ self._signal().mean(axis=1)
            )
            level /= expected / np.median(expected)
        low, high = np.percentile(level, (2, 98))
        return float(1 - low / high)

    def _unweighted(self, side: SideName, keep: NDArray[np.int64]) -> list[str]:
        """Report frames that change during the scan but are averaged."""
        places, frames = self._places[side], self.tiles[side]
        if side == "flats" and (places is not None or self._currents is not None):
            return []
        group = np.arange(len(frames)) >= len(frames) / 2 if places is None else places
        group = np.unique(group, return_inverse=True)[1]
        change = _largest_change(frames[keep], group[keep], _LEAST_UNPLACED, self._beam())
        if not change:
            return []
        what = "their order among the projections is not stored" if places is None else ""
        why = what or "only flats are interpolated in time"
        return [
            f"{side} change by {100 * change:.2g} % of the beam during the scan, and their mean is "
            f"used: {why}"
        ]

    def _signal(self) -> Means:
        """Tiles of the flats, less the median of the darks."""
        darks = self.tiles.get("darks")
        return self.tiles["flats"] - (0 if darks is None else np.median(darks, axis=0))

    def _beam(self) -> float:
        """Signal of the beam at its brightest; 0 if the flats are not brighter than the darks.

        Without flats, the level of the darks is returned, and 0 without darks.
        """
        if "flats" not in self.tiles:
            darks = self.tiles.get("darks")
            return 0.0 if darks is None else abs(float(np.nanmedian(darks)))
        signal = float(np.nanmax(np.nanmedian(self._signal(), axis=0)))
        level = float(np.nanmax(np.abs(self.tiles["flats"])))
        return signal if signal > _LEAST_SIGNAL * level else 0.0

    def _odd(self, side: SideName) -> set[int]:
        """Indices of frames that are not finite, or odd by the rules in this module's docstring."""
        means, places = self.tiles[side].mean(axis=1), self._places[side]
        group = np.zeros(len(means)) if places is None else places
        least = _ODD_SHARE[side] * self._beam()
        odd: set[int] = set(np.flatnonzero(~np.isfinite(means)).tolist())
        for one in np.unique(group):
            members = np.flatnonzero(group == one)
            compared = means[members] if len(members) > 2 else means
            if len(compared) < 3:
                continue
            median = np.nanmedian(compared)
            # The standard deviation of a normal distribution, from its median absolute deviation.
            deviation = 1.4826 * np.nanmedian(np.abs(compared - median))
            is_odd = np.abs(means[members] - median) > max(_DEVIATIONS * deviation, least)
            odd |= set(members[is_odd].tolist())
        if side == "flats" and self._beam() > 0:
            beam = self._signal().mean(axis=1)
            levels = {one: np.nanmedian(beam[group == one]) for one in np.unique(group)}
            for one, level in levels.items():
                if level < _LEAST_BEAM * max(levels.values()):
                    odd |= set(np.flatnonzero(group == one).tolist())
        return odd


def _tile_means(selection: Selection) -> tuple[Means, float]:
    """Means of the tiles of each frame, read one after the other; largest share of saturation."""
    n_frames, n_rows, n_columns = selection.spec.shape
    tops, lefts = (_first_of_tiles(n) for n in (n_rows, n_columns))
    counts = np.outer(np.diff(tops, append=n_rows), np.diff(lefts, append=n_columns))
    frame = np.empty((1, n_rows, n_columns), selection.spec.dtype)
    means, saturated = np.empty((n_frames, counts.size)), 0.0
    for index in range(n_frames):
        selection.read((index, index + 1), (0, n_rows), frame)
        sums = np.add.reduceat(frame[0], tops, axis=0, dtype=np.float64)
        means[index] = (np.add.reduceat(sums, lefts, axis=1) / counts).ravel()
        highest = frame.max()
        if frame.dtype.kind == "u" and int(highest) + 1 in _CAMERA_LEVELS:
            saturated = max(saturated, float(np.mean(frame == highest)))
    return means, saturated


def _first_of_tiles(length: int) -> NDArray[np.int64]:
    """First index of each tile along an axis."""
    n = min(_TILES, length)
    return np.arange(n) * length // n


def _largest_change(
    frames: Means, group: NDArray[np.int64], least_share: float, beam: float
) -> float:
    """Largest difference of two groups as a share of the beam; 0 if all differences are noise.

    Parameters
    ----------
    frames : ndarray of float
        Means of the tiles, (frames, tiles).
    group : ndarray of int
        Group of each frame.
    least_share : float
        Share of the beam below which a difference is ignored.
    beam : float
        Signal of the beam. If it is 0, the result is 0.
    """
    if beam <= 0:
        return 0.0
    numbers = np.unique(group)
    means = np.array([frames[group == one].mean(axis=0) for one in numbers])
    sizes = np.array([np.count_nonzero(group == one) for one in numbers])
    within = sum(((frames[group == one] - means[i]) ** 2).sum(0) for i, one in enumerate(numbers))
    variance = within / max(1, len(frames) - len(numbers))
    largest = 0.0
    for a, b in combinations(range(len(numbers)), 2):
        error = np.sqrt(np.mean(variance * (1 / sizes[a] + 1 / sizes[b])))
        change = np.sqrt(np.mean((means[a] - means[b]) ** 2))
        if change > max(_ERRORS * error, least_share * beam):
            largest = max(largest, float(change / beam))
    return largest


def _weights_in_time(projections: NDArray[np.int64], places: NDArray[np.int64]) -> Means:
    """Weight of each group's mean for each projection, (projections, groups)."""
    groups = np.arange(len(places))
    at = projections + np.searchsorted(places, projections, side="right")  # among all frames
    return np.stack([np.interp(at, places + groups, groups == one) for one in groups], axis=1)
