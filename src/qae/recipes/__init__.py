"""Configurations that `qae train` knows by name (YAML files)."""
