"""The demo: a phantom scan, planned and reconstructed within a budget, and shown."""
