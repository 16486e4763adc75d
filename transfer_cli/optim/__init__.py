"""How fast each layer group learns, and when."""
