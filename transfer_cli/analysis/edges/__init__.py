"""What the states of spans tell of how they belong together."""
