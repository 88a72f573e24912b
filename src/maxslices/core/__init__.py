"""Methods: how they are declared, checked and found by name."""
