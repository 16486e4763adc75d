"""What a batch is trained for."""
