"""`transfer score`: what a language model says of sentences and prompts, without training."""
