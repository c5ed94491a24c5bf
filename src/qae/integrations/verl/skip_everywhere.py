"""Importing this puts the skipping engine in the place of verl's FSDP engine."""

from qae.integrations.verl.skip import register

register()
