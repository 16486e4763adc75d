"""Trained language models at work: text that goes on, gaps that are filled."""
