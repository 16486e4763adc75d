"""How alike two models are."""
