"""A run at work: trains, writes checkpoints and results, resumes."""
