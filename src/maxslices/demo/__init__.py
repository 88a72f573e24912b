"""The demo: a phantom scan, planned and reconstructed within a budget, and shown."""

from __future__ import annotations

from .demo_run import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
