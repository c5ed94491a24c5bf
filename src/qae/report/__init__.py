"""What happened in a run: one self-contained page, Markdown, or a page that follows the run. Never imports torch."""

from qae.report.markdown import write_markdown
from qae.report.page import render_report, write_report
from qae.report.png import write_png
from qae.report.watch import serve_report

__all__ = ["render_report", "serve_report", "write_markdown", "write_png", "write_report"]
