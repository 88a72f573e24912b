"""The demo: the scan of a phantom, planned, reconstructed within a budget, and drawn."""

from __future__ import annotations

from .demo_run import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
