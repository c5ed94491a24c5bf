"""What pytest must not import where a host framework is missing: modules that register with it when imported."""

from importlib.util import find_spec

VERL = ["load", "plugin", "rollout", "skip", "skip_everywhere", "trainer"]
collect_ignore = (
    [] if find_spec("verl") else ["tests/verl_update.py", *(f"src/qae/integrations/verl/{name}.py" for name in VERL)]
)
