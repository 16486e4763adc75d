"""Edits of a model, plans of what trains when, and penalties."""
