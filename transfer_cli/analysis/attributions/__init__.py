"""Which words decide."""
