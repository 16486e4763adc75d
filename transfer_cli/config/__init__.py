"""From YAML to objects: where configs are found, what they may hold, how objects are built."""
