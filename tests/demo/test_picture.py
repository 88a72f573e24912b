"""The demo's picture."""

import matplotlib.image
import numpy as np

from maxslices.demo.picture import SectionBar, draw


def test_a_picture_is_written(tmp_path):
    rng = np.random.default_rng(5)
    truth = rng.random((48, 48))
    draw(
        tmp_path / "picture.png",
        truth=truth,
        result=truth + 0.1,
        bars=[SectionBar("flat field", 4_000_000, 3_900_000), SectionBar("fbp", 3_100_000, None)],
        budget_bytes=5_000_000,
        scan_bytes=20_000_000,
        caption="a caption",
    )
    image = matplotlib.image.imread(tmp_path / "picture.png")
    assert image.shape[:2] == (770, 1160)
    assert image.std() > 0.05
