"""Contracts that a user's own objective, plan or task can be tested with."""
