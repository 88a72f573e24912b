"""Names of the results of a run."""

from __future__ import annotations

import re

_RESULT = re.compile(
    r"(result(_8bit|_16bit|_whole)?|[0-9]{2,}_\w+)(\.incomplete)?(\.h5|\.tif|\.ome\.zarr)?"
    r"|sweep\.(tif|png)|snapshot_[0-9]{2,}_\w+\.tif"
)
"""The last result, or the number of a step and its method, in any format; the pictures of a sweep;
or a snapshot."""


def is_result_name(name: str) -> bool:
    """True if a run may have written a result of that name.

    Examples
    --------
    >>> [is_result_name(name) for name in ("result.h5", "02_fbp.incomplete.h5", "03_fbp_8bit")]
    [True, True, True]
    >>> [is_result_name(name) for name in ("scan.h5", "..", "result.h5.bak")]
    [False, False, False]
    """
    return _RESULT.fullmatch(name) is not None
