"""A package whose library is not installed."""

from __future__ import annotations

import a_library_that_is_not_there  # noqa: F401
