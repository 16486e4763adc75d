"""A tag for each word: entities, parts of speech, chunks."""
