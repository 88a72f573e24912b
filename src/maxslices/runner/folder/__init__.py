"""The folder of a run: its results, its journal, and going on after a stop."""
