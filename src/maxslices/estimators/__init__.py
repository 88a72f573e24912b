"""Where memory models come from."""

from .choose import Choice, Chooser, Question
from .declared import declared_model
from .recorded import Records

__all__ = ["Choice", "Chooser", "Question", "Records", "declared_model"]
