"""Where memory models come from."""

from .chooser import Choice, Chooser
from .declared import declared_model
from .model_request import ModelRequest
from .recorded import Records

__all__ = ["Choice", "Chooser", "ModelRequest", "Records", "declared_model"]
