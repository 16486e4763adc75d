"""From a composed config to the parts of a run."""
