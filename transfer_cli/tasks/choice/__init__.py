"""Multiple choice: several texts that may follow a context, of which one is right."""
