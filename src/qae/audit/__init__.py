"""What rollout dumps and scalar logs say: what each baseline would have done, and what happened to the entropy."""

from qae.audit.audit import audit_paths, save_audit
from qae.audit.show import audit_text

__all__ = ["audit_paths", "audit_text", "save_audit"]
