"""Multiple choice: several texts that may follow a context, one of them right."""
