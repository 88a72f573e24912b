"""Stacks of frames: in arrays, in files by offset, and subsets of them."""
