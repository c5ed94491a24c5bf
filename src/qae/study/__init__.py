"""Experiments of several arms and seeds, compared in pairs."""
