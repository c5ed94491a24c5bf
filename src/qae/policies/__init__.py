"""Policies: language models with all that sampling and training need to know about them."""

from qae.policies.load import load_policy, save_policy
from qae.policies.lora import has_lora, load_adapter, merged_state_dict
from qae.policies.policy import Policy, PolicyError
from qae.policies.smollm2 import fetch_smollm2

__all__ = [
    "Policy",
    "PolicyError",
    "fetch_smollm2",
    "has_lora",
    "load_adapter",
    "load_policy",
    "merged_state_dict",
    "save_policy",
]
