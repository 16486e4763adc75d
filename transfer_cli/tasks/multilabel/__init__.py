"""Several labels for a text, or none."""
