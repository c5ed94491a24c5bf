"""What `engine=verl` names in `VERL_USE_EXTERNAL_MODULES`: estimators and trainer, and by environment more.

    VERL_PLATFORM=cpu              the CPU platform and rollout
    QAE_SKIP_ZERO_ADVANTAGE=1      the FSDP2 engine that skips rows with advantage 0

The platform comes first: the imports of the others ask verl for it.
"""

import importlib
import os

if os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
    importlib.import_module("qae.integrations.verl.cpu").register()
for _name in ("plugin", "trainer"):
    importlib.import_module(f"qae.integrations.verl.{_name}")
if os.environ.get("QAE_SKIP_ZERO_ADVANTAGE", "0") not in ("", "0"):
    importlib.import_module("qae.integrations.verl.skip").register()
