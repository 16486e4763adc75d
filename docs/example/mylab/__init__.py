"""A lab's own parts for transfer: an objective and a plan."""
