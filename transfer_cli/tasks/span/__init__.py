"""Span extraction: the answer to a question, cut from a text."""
