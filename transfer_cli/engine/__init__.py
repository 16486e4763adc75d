"""The training step, and the Ignite engines that repeat it."""
