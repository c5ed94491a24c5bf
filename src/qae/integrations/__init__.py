"""Quantile advantages inside other frameworks: one adapter each, no mathematics here."""
