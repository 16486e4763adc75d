"""A lab's own parts for transfer: an objective, a plan, and a section of the report's page."""

from mylab import length_section

__all__ = ["length_section"]
