"""Where memory models come from."""

from .asked import Question
from .choose import Choice, Chooser
from .declared import declared_model
from .recorded import Records

__all__ = ["Choice", "Chooser", "Question", "Records", "declared_model"]
