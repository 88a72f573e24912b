"""The test kit for authors of methods."""
