"""Blocks of a section: read them, run the methods, copy results back and write them."""
