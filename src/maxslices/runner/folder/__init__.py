"""The folder of a run: its results, its journal, and resuming a stopped run."""
