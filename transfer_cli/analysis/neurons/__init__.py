"""What feed-forward units follow."""
