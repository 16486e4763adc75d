"""From YAML to objects: where configs lie, what shape they have, how they are built."""
