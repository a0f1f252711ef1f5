"""A fit and its answers as one HTML file that needs nothing else: no network, no script, no fonts.

``write_report(path, fit, recording, questions)`` asks and writes. What it writes is a `Report`, plain data that can be
composed by other means as well; ``render`` turns it into a page and ``write`` puts it in its place.
"""

from counterflow.questions.aggregate import AskAggregate
from counterflow.questions.attribution import AskAttribution
from counterflow.questions.counterfactual import AskCounterfactual
from counterflow.questions.effect import AskEffect
from counterflow.questions.forecast import AskForecast
from counterflow.questions.paths import AskPaths
from counterflow.questions.restoration import AskRestoration
from counterflow.report.composition import compose, tell, write_report
from counterflow.report.content import Estimate, Refusal, Report, Section, Told, WhatIf, section
from counterflow.report.page import render, write

__all__ = [
    "AskAggregate",
    "AskAttribution",
    "AskCounterfactual",
    "AskEffect",
    "AskForecast",
    "AskPaths",
    "AskRestoration",
    "Estimate",
    "Refusal",
    "Report",
    "Section",
    "Told",
    "WhatIf",
    "compose",
    "render",
    "section",
    "tell",
    "write",
    "write_report",
]
