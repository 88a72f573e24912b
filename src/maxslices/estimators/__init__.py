"""Where memory models come from."""

from .choose import choose_model
from .declared import declared_model

__all__ = ["choose_model", "declared_model"]
