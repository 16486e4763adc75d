"""Conversations with a model, written by a chat template."""
