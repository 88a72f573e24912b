"""What is said of a run, while it runs and afterwards."""
