"""The memory of a step, by category, stage and layer, as figures, text and plot."""
