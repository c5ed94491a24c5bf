"""What happened in a run: one self-contained HTML page, or Markdown. Never imports torch."""

from qae.report.markdown import write_markdown
from qae.report.page import write_report

__all__ = ["write_markdown", "write_report"]
