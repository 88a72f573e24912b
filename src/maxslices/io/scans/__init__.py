"""Scans: where their parts are, opening them, and what their files say of them."""
