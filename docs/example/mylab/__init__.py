"""A lab's own parts for transfer: an objective, a plan and an edit."""
