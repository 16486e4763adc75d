"""What a layer knows: classifiers that read its states, and what they are compared with."""
