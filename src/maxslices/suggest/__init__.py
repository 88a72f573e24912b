"""Suggest ledgers."""
