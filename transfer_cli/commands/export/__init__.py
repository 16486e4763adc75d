"""`transfer export`: a finished run in a published format."""
