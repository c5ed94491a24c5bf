"""What `engine=verl` names in `VERL_USE_EXTERNAL_MODULES`: each verl process loads estimators and trainer, and by
environment

    VERL_PLATFORM=cpu              the CPU platform and rollout
    QAE_SKIP_ZERO_ADVANTAGE=1      the FSDP2 engine that skips rows with advantage 0
"""

import os

from qae.integrations.verl import plugin, trainer

__all__ = ["plugin", "trainer"]

if os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
    from qae.integrations.verl import cpu

    cpu.register()
if os.environ.get("QAE_SKIP_ZERO_ADVANTAGE", "0") not in ("", "0"):
    from qae.integrations.verl import skip

    skip.register()
