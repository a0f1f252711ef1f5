"""A fit and its answers as one HTML file that needs nothing else: no network, no script, no fonts."""

from counterflow.report.content import Answer, Report, Training, WhatIf
from counterflow.report.page import render, write

__all__ = ["Answer", "Report", "Training", "WhatIf", "render", "write"]
