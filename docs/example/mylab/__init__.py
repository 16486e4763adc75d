"""A lab's own parts for transfer: an objective, a plan, an edit, a family of published models.

`--plugin` imports this package before a command begins, and with it what registers itself.
"""

from mylab import published as published
