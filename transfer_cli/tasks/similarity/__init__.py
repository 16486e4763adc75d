"""Vectors of texts, learnt from pairs that belong together, or from how alike they are."""
