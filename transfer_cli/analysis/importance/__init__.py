"""What a model needs."""
