"""Damaged pipelines: read, and planned for a small scan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from maxslices import ArraySpec, plan
from maxslices.pipeline import Pipeline

from .child import Outcome, cases
from .mutate import damaged, damaged_text

SOUND = (
    """\
- method: standard_tomo
  module_path: httomo.data.hdf.loaders
  parameters:
    data_path: entry1/tomo_entry/data/data
    image_key_path: entry1/tomo_entry/instrument/detector/image_key
    rotation_angles:
      user_defined: {start_angle: 0, stop_angle: 180.0, angles_total: 15}
    preview:
      detector_y: {start: 1, stop: 6}
      detector_x: mid
- method: minus_log
- method: median_filter
  parameters:
    kernel_size: 3
- method: find_center_vo
  id: centering
  parameters: {}
  side_outputs:
    cor: centre
- method: fbp
  parameters:
    center: ${{centering.side_outputs.centre}}
  save_result: true
""",
    """\
- method: standard_tomo
  parameters:
    flats: ignore
    darks: ignore
    rotation_angles: [0, 1.5, 3, 4.5]
    preview: {angles: {start: mid, start_offset: -2, stop: end}}
- method: &m total_variation_rof
  parameters: &p
    regularisation_parameter: 1.0e-2
    iterations: 4
- method: *m
  parameters:
    <<: *p
    iterations: 9
""",
)


def plan_file(path: Path) -> None:
    """Read a pipeline and plan it, as `maxslices plan --shape` does."""
    plan(
        ArraySpec((15, 7, 11), "uint16"),
        Pipeline.from_file(path),
        device="cpu",
        memory="1GB",
        estimator="declared",
    )


def pipeline_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Damage pipelines."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pipeline.yaml"

    def case(random_: random.Random) -> None:
        text = random_.choice(SOUND)
        data = damaged_text(text, random_).encode(errors="surrogatepass")
        if random_.random() < 0.2:
            data = damaged(data, random_)
        path.write_bytes(data)
        plan_file(path)

    for text in SOUND:  # children inherit these imports
        path.write_text(text)
        plan_file(path)
    return cases(kind, seed, case)
