"""Reports of a run: progress, log, times and memory."""
