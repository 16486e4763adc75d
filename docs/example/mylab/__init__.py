"""A lab's own parts for transfer: an objective, a plan, an edit, a family, a section of reports.

`--plugin` imports this package before a command begins, and with it what registers itself.
"""

from mylab import length_section as length_section
from mylab import published as published
