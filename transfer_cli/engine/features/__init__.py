"""Hidden states of a frozen backbone: computed once, and shared by runs."""
