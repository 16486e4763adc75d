"""Reads finished and running runs, compares them, and shows them: as a table and as a page."""
