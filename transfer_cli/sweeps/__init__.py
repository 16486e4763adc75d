"""Runs the jobs of a sweep: in processes of their own, side by side, or as trials of a search."""
