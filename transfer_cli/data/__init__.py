"""Text and labels: fetched, read, tokenised, cut into batches."""
