"""What changes in a model, which weights train, and for how long."""
