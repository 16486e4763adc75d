"""A run at work: what is trained, kept, written and taken up again."""
