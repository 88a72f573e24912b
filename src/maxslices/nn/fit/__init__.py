"""What fits: the largest batch, patch or tile, found by replays and confirmed by a real step."""
