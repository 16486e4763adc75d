"""What a run writes: its directory, its checkpoints, its records."""
