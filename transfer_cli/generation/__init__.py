"""Text generation and gap filling with trained language models."""
