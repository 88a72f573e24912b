"""Memory as arithmetic: models, ledgers, the account of a block. Needs NumPy alone."""
