"""Stores of the data between two sections, in memory and in files."""
