"""The Transformer, its heads, and weights on disk."""
