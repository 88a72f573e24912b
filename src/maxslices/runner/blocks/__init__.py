"""Blocks on their way: read, through the methods of a section, copied back and written."""
