"""Largest batch or patch that fits, predicted by replays and verified by a real step."""
