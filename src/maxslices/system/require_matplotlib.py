"""Matplotlib, before anything takes its time."""

from __future__ import annotations

from ..errors import UsageError


def require_matplotlib(what: str, how: str = "pip install matplotlib") -> None:
    """Import Matplotlib.

    Parameters
    ----------
    what : str
        What needs it.
    how : str
        Command that installs it.

    Raises
    ------
    UsageError
        If it is not installed, or cannot be used.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(f"{what} needs Matplotlib, which is not installed: {how}") from None
    except ValueError as error:  # MPLBACKEND, which it reads as it is imported
        raise UsageError(f"Matplotlib cannot be used: {error}") from None
