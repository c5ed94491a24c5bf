"""Graders: from a completion and a gold answer to a verdict."""

from qae.rewards.grade import Grade

__all__ = ["Grade"]
