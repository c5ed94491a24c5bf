"""`qae doctor`: is QAE active in this framework, and in this run?"""

from qae.doctor.hosts import check_host, check_machine, list_hosts
from qae.doctor.run import Verdict, check_run
from qae.doctor.show import findings_text, verdict_text

__all__ = ["Verdict", "check_host", "check_machine", "check_run", "findings_text", "list_hosts", "verdict_text"]
