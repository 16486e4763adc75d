"""`transfer analyze`: open a model, find things out about it, write them beside the run."""
