"""A place and prompts for what only composes verl's settings."""

from pathlib import Path

from qae.engines.verl.overrides import Place, Prompts

PLACE = Place(Path("/runs/some"))
PROMPTS = Prompts(raw=True, tokens=6)
