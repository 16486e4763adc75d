"""Optimizers, learning-rate schedules and weights of losses."""
