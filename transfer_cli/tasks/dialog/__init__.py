"""Dialog with a persona: the next utterance, chosen among candidates and made by the model."""
