"""`transfer predict`: read texts, answer them, write the answers."""
