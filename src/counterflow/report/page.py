"""The page: HTML around the drawings. Every text that comes from data is escaped."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape_markup
from importlib.resources import files
from pathlib import Path

from counterflow._version import __version__
from counterflow.errors import StorageError
from counterflow.fits.checks.kinds import KINDS, ORDER, Verdict
from counterflow.fits.checks.verdicts import Check, Checks
from counterflow.report import figures, graph
from counterflow.report.content import Refusal, Remedy, Report, Shares, WhatIf, World, plain, rounded, singular

MOST_NOTES = 3  # under a question, before they are folded away
MOST_PAIRS = 8  # of an influence graph that can be read as a sentence
GENERATOR = '<meta name="generator" content="Counterflow'


def escape(text: str) -> str:
    """Text from data, safe between tags and in attributes; a number and its per cent sign stay on one line."""
    return escape_markup(text).replace(" %", "\N{NO-BREAK SPACE}%")


def write(report: Report | str, path: str | Path) -> None:
    """Write a report (or a page already rendered) to ``path``, replacing what is there only when all is written."""
    target = Path(path)
    text = render(report) if isinstance(report, Report) else report
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise StorageError(f"cannot write {str(target)!r}: {reason}. Choose another place.") from error
        raise


def render(report: Report) -> str:
    """The whole page as one HTML text that refers to nothing outside itself."""
    style = files("counterflow.report").joinpath("page.css").read_text(encoding="utf-8")
    drawn = [
        (_whatif, report.whatifs),
        (_world, report.worlds),
        (_shares, report.shares),
        (_remedy, report.remedies),
        (_refusal, report.refusals),
    ]
    sections: list[str] = []
    seen: dict[str, int] = {}  # a note is told in full where it first applies
    for draw, asked in drawn:
        for question in asked:
            sections.append(draw(question, _Place(len(sections), report.questions, seen)))  # type: ignore[operator]
    sections += [_graph(report), _caveats(report), _checks(report), _units(report), _privacy(report)]
    sections.append(_training(report))
    sections.append(_provenance(report))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'{GENERATOR} {escape(__version__)}">',
            # nothing may be fetched or run, whatever a name in the data holds
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape(report.title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escape(report.title)}</h1>",
            f'<p class="lead">{escape(report.lead)}</p>',
            _facts(report),
            *[section for section in sections if section],
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _whatif(whatif: WhatIf, place: _Place) -> str:
    at, number = whatif.headline_index, place.number
    wide = figures.trajectories(whatif, at, f"q{number}w-", (9.0, 3.3), title=False)
    narrow = figures.trajectories(whatif, at, f"q{number}n-", (4.0, 3.0), title=False)
    unit = whatif.channels[at].unit
    label = escape(whatif.headline + (f" [{unit}]" if unit else ""))
    small = "\n".join(
        f"<figure>{figures.trajectories(whatif, k, f'q{number}c{k}-', (3.4, 2.3))}</figure>"
        for k in range(len(whatif.channels))
        if k != at
    )
    caveats = [text for answer in whatif.answers for text in answer.caveats]
    return f"""{_head(whatif.question, whatif.sentence(), caveats, place)}
{_legend(whatif)}
<figure class="hero"><figcaption>Effect on {label}</figcaption>
<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>
{_table(whatif)}
<details{" open" if number == 0 else ""}><summary>All other channels</summary>
<div class="grid">{small}</div></details>
</section>"""


@dataclass(frozen=True)
class _Place:
    """Where a question stands on the page, and which notes stand above it already."""

    number: int
    total: int
    seen: dict[str, int]


def _facts(report: Report) -> str:
    if not report.facts:
        return ""
    entries = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in report.facts.items()
    )
    return f'<dl class="facts">{entries}</dl>'


def _head(question: str, sentence: str, caveats: Sequence[str], place: _Place) -> str:
    fresh, earlier = [], set()
    for text in dict.fromkeys(caveats):
        if place.seen.setdefault(text, place.number) == place.number:
            fresh.append(f'<p class="note">{escape(_capital(text))}.</p>')
        else:
            earlier.add(place.seen[text] + 1)
    notes = "".join(fresh)
    if len(fresh) > MOST_NOTES:
        notes = f"<details><summary>{len(fresh)} notes speak against this answer</summary>{notes}</details>"
    for number in sorted(earlier):
        notes += f'<p class="note">What is noted under question {number} applies here too.</p>'
    return f"""<section>
<p class="kicker">Question {place.number + 1} of {place.total}</p>
<h2>{escape(question)}</h2>
<p class="answer">{escape(sentence)}</p>
{notes}"""


def _key(*entries: tuple[str, str, str]) -> str:
    """A legend of (class of the mark, CSS variable, text)."""
    marks = "".join(
        f'<li><i class="{mark}" style="color:var({colour})"></i>{escape(text)}</li>' for mark, colour, text in entries
    )
    return f'<ul class="legend">{marks}</ul>'


def _world(world: World, place: _Place) -> str:
    at, told, number = world.headline_index, world.trajectory, place.number
    wide = figures.worlds(world, at, f"q{number}w-", (9.0, 3.3), title=False)
    narrow = figures.worlds(world, at, f"q{number}n-", (4.0, 3.0), title=False)
    small = "\n".join(
        f"<figure>{figures.worlds(world, k, f'q{number}c{k}-', (3.4, 2.3))}</figure>"
        for k in range(len(world.channels))
        if k != at
    )
    band = f", with {100 * told.level:g} % band" if told.level is not None else ""
    entries = [("", "--fact", "measured"), ("", "--series-0", f"would have been{band}")]
    if world.truth is not None:
        entries.append(("dashed", "--truth", "simulator's twin run (the truth)"))
    if world.changed is not None:
        entries.append(("block", "--shade", "while inputs differ"))
    return f"""{_head(world.question, world.sentence(), told.caveats, place)}
{_key(*entries)}
<figure class="hero"><figcaption>{_with_unit(world.headline, world.channels[at].unit)}</figcaption>
<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>
<details><summary>All other channels</summary>
<div class="grid">{small}</div></details>
</section>"""


def _shares(shares: Shares, place: _Place) -> str:
    found, ranked, number = shares.attribution, shares.ranked(), place.number
    unit = shares.channels[shares.headline_index].unit
    largest = max((abs(value) for _, value in ranked), default=0.0)
    bars, key = [], [("dashed", "--truth", "departure from the usual level")]
    for name, value in ranked:
        colour, dotted = figures.share_colour(shares, name)
        variable = figures.variable(colour)
        width = 50 * abs(value) / largest if largest else 0.0
        left = 50.0 if value >= 0 else 50 - width
        bars.append(
            f'<li><span class="who">{escape(_capital(shares.label(name)))}</span><span class="track">'
            f'<i style="left:{left:.2f}%;width:{width:.2f}%;background:var({variable})"></i></span>'
            f'<span class="size">{escape(f"{rounded(value, largest)} {unit}".rstrip())}</span></li>'
        )
        key.append(("dotted" if dotted else "", variable, shares.label(name)))
    wide = figures.shares_over_time(shares, f"q{number}w-", (9.0, 3.0))
    narrow = figures.shares_over_time(shares, f"q{number}n-", (4.0, 3.0))
    return f"""{_head(shares.question, shares.sentence(), found.caveats, place)}
<h3>Shares of {_with_unit(shares.headline, unit)}, average over the window</h3>
<ul class="bars">{"".join(bars)}</ul>
{_key(*key)}
<figure class="hero"><figcaption>Over time</figcaption>
<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>
<p class="aside">The shares add up exactly to what was measured. They are best estimates, without intervals; ask for the
effect of a change to see how sure one of them is.</p>
</section>"""


def _remedy(remedy: Remedy, place: _Place) -> str:
    number = place.number
    rows = "".join(
        f'<tr><td>{escape(plain(cause))}</td><td class="text" data-label="input">{escape(name)}</td>'
        f'<td data-label="change">{escape(change)}</td></tr>'
        for cause, name, change in remedy.changes()
    )
    reached = "".join(
        f'<tr><td>{escape(name)}</td><td data-label="wanted">{escape(wanted)}</td>'
        f'<td data-label="expected">{escape(got)}</td><td data-label="interval">{escape(spread)}</td></tr>'
        for name, wanted, got, spread in remedy.reached()
    )
    ways = []
    for k, name in enumerate(remedy.restoration.channels):
        unit = remedy.unit.outputs[remedy.unit.output_names.index(name)].unit
        wide = figures.way_there(remedy, k, f"q{number}w{k}-", (9.0, 2.6))
        narrow = figures.way_there(remedy, k, f"q{number}n{k}-", (4.0, 2.8))
        ways.append(
            f'<figure class="hero"><figcaption>Change of {_with_unit(name, unit)}</figcaption>'
            f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>'
        )
    level = f", with {100 * remedy.effect.level:g} % band" if remedy.effect.level is not None else ""
    caveats = (*remedy.restoration.caveats, *remedy.effect.caveats)
    return f"""{_head(remedy.question, remedy.sentence(), caveats, place)}
<div class="grid two"><div class="scroll"><table class="stack"><thead><tr><th>unit</th><th class="text">input</th>
<th>change, held</th></tr></thead><tbody>{rows}</tbody></table></div>
<div class="scroll"><table class="stack"><thead><tr><th>output</th><th>wanted</th><th>expected</th><th>interval</th>
</tr></thead><tbody>{reached}</tbody></table></div></div>
{_key(("", "--series-0", f"expected{level}"), ("dashed", "--truth", "wanted"))}
{"".join(ways)}
</section>"""


def _refusal(refusal: Refusal, place: _Place) -> str:
    return _head(refusal.question, refusal.sentence(), (), place) + "</section>"


def _graph(report: Report) -> str:
    found = report.graph
    if found is None:
        return ""
    rows = "".join(
        f"<tr><td>{escape(plain(edge.cause))} → {escape(plain(edge.effect))}</td>"
        f'<td class="text" data-label="influence">{escape(graph.kind_of(edge))}</td>'
        f'<td data-label="q">{edge.q_value:.2g}</td><td data-label="direct strength">{edge.direct_strength:.2g}</td>'
        f'<td data-label="total strength">{edge.total_strength:.2g}</td></tr>'
        for edge in sorted(found, key=lambda e: (not e.direct, -e.direct_strength))
    )
    hidden = graph.left_out(found)
    note = f" {hidden} influences through others are left out of the drawing; the table has them." if hidden else ""
    kinds = [graph.kind_of(edge) for edge in found]
    told = len(kinds) - kinds.count(graph.NONE)
    if told <= MOST_PAIRS:
        words = graph.description(found)
    else:
        words = f"{kinds.count(graph.DIRECT)} of {len(kinds)} pairs of units act on each other directly"
        words += f", {kinds.count(graph.THROUGH)} only through others."
    marks = {graph.DIRECT: "", graph.THROUGH: "dashed", graph.UNDETERMINED: "dotted"}
    colours = {graph.DIRECT: "--accent", graph.THROUGH: "--muted", graph.UNDETERMINED: "--warn"}
    key = _key(
        *[
            (marks[k], colours[k], text)
            for k, text in graph.LEGEND.items()
            if k in kinds and not (k == graph.THROUGH and hidden)
        ]
    )
    return f"""<section><h2>Who acts on whom</h2>
<p>{escape(words)} Of the direct influences kept, at most {100 * found.rate:g} % are expected to be
false. One that was not found is not shown to be absent.{note}</p>
{key}
<figure><div class="wide">{graph.drawing(found, "gw-")}</div>
<div class="narrow">{graph.drawing(found, "gn-", narrow=True)}</div></figure>
<details><summary>Every pair, with strength and certainty</summary>
<div class="scroll"><table class="stack"><thead><tr><th>cause → effect</th><th class="text">influence</th><th>q</th>
<th>direct strength</th><th>total strength</th></tr></thead><tbody>{rows}</tbody></table></div>
<p class="aside">Strength: root mean square of what inputs of variance one at the cause do to the measurements of the
effect, in units of their noise. q: the smallest false-discovery rate at which the direct influence is kept.</p>
</details></section>"""


def _checks(report: Report) -> str:
    if not report.checks:
        return ""
    kinds = {name: [c for c in report.checks if c.name == name] for name in KINDS}
    cards = "".join(_checked(name, found, f"k{k}-") for k, (name, found) in enumerate(kinds.items()) if found)
    worst = Checks(report.checks).verdict
    return f"""<section><h2>What was checked</h2>
<p>{_mark(worst)} is the worst verdict of all. Innovations are what each row brought that the model, with all units, did
not foresee. If the model is right they are white, and as large as the noise levels say.</p>
<div class="grid two">{cards}</div></section>"""


def _checked(name: str, found: Sequence[Check], prefix: str) -> str:
    """One kind of check: its worst verdict, its picture, what does not pass with its remedy, and the rest."""
    worst, drawing = Checks(tuple(found)).verdict, figures.check_panel(name, found, prefix)
    told = "".join(
        f"<li>{_mark(c.verdict)}<div>{_about(c)}{escape(_capital(c.finding))}."
        + (f"<br><i>Remedy:</i> {escape(_capital(c.remedy))}." if c.remedy else "")
        + "</div></li>"
        for c in sorted(found, key=lambda c: -ORDER.index(c.verdict))
        if c.verdict != "pass"
    )
    good = "".join(
        f"<li>{_mark(c.verdict)}<div>{_about(c)}{escape(_capital(c.finding))}.</div></li>"
        for c in found
        if c.verdict == "pass"
    )
    folded = f'<details><summary>What passes</summary><ul class="checks">{good}</ul></details>' if good else ""
    return f"""<div><h3>{_mark(worst)} {escape(_capital(KINDS[name]))}</h3>
{f"<figure>{drawing}</figure>" if drawing else ""}{f'<ul class="checks">{told}</ul>' if told else ""}{folded}</div>"""


def _mark(verdict: Verdict) -> str:
    style = {"pass": "good", "caution": "bad", "fail": "fail", "unknown": ""}[verdict]
    return f'<span class="mark {style}">{verdict}</span>'


def _about(check: Check) -> str:
    number = f" ({check.number:.2g} {check.unit_of_number})" if math.isfinite(check.number) else ""
    return f"<strong>{escape(plain(check.about) or 'the whole fit')}</strong>{escape(number)}<br>"


def _with_unit(name: str, unit: str) -> str:
    return escape(name + (f" [{unit}]" if unit else ""))


def _legend(whatif: WhatIf) -> str:
    entries = []
    if whatif.truth is not None:
        entries.append(f'<li><i class="dashed" style="color:var(--truth)"></i>{escape(whatif.truth.label)}</li>')
    for k, answer in enumerate(whatif.estimates):
        label = answer.label
        if answer.lower is not None and answer.level is not None:
            label += f", with {100 * answer.level:g} % band"
        entries.append(f'<li><i style="color:var(--series-{k % len(figures.SERIES)})"></i>{escape(label)}</li>')
    if whatif.duration is not None:
        entries.append('<li><i class="block"></i>while the change is held</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _table(whatif: WhatIf) -> str:
    first = "".join(f'<th class="first">{escape(answer.short)}</th>' for answer in whatif.answers)
    labels = "".join(f"<th>{escape(answer.short)}</th>" for answer in whatif.answers)
    span, unit_of_time = len(whatif.answers), escape(singular(whatif.step_unit, whatif.step))
    rows = []
    for k, channel in enumerate(whatif.channels):
        row = whatif.peak_row(k)
        cells = "".join(
            f"<td{kind}>{whatif.quantity(answer, at, k).split()[0]}</td>"
            for at, kind in ((0, ' class="first"'), (row, ""))
            for answer in whatif.answers
        )
        unit = f" [{channel.unit}]" if channel.unit else ""
        mark = ' class="key"' if k == whatif.headline_index else ""
        rows.append(f"<tr{mark}><td>{escape(channel.name + unit)}</td>{cells}</tr>")
    return f"""<div class="scroll"><table class="effects"><thead>
<tr><th rowspan="2">channel</th><th class="first" colspan="{span}">after {whatif.step:g} {unit_of_time}</th>
<th colspan="{span}">at its largest</th></tr><tr class="sub">{first}{labels}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>"""


def _caveats(report: Report) -> str:
    if not report.caveats:
        return ""
    items = "".join(f"<li>{escape(_capital(text))}.</li>" for text in report.caveats)
    return f'<section class="caveats"><h2>Before you act on this</h2><ul>{items}</ul></section>'


def _units(report: Report) -> str:
    if not report.units:
        return ""

    def channels(entries: object) -> str:
        return escape(", ".join(f"{c.name} [{c.unit}]" if c.unit else c.name for c in entries))  # type: ignore[attr-defined]

    rows = "".join(
        f'<tr><td>{escape(plain(unit.name))}</td><td data-label="states">{unit.states}</td>'
        f'<td class="text" data-label="inputs, shared">{channels(unit.inputs)}</td>'
        f'<td class="text" data-label="outputs, private">{channels(unit.outputs)}</td></tr>'
        for unit in report.units
    )
    return f"""<section><h2>The units</h2>
<p>Measurements stay where they are taken. A unit shares its inputs, its own state dynamics and a few numbers a step
that stand for its state; the outputs themselves, and how it measures them, it does not.</p>
<div class="scroll"><table class="stack"><thead><tr><th>unit</th><th>states</th><th class="text">inputs, shared</th>
<th class="text">outputs, private</th></tr></thead><tbody>{rows}</tbody></table></div></section>"""


def _training(report: Report) -> str:
    if not report.trainings:
        return ""
    rows = "".join(
        f'<tr><td>{escape(t.label)}</td><td class="text" data-label="traffic">{escape(str(t.traffic))}</td>'
        f'<td class="text" data-label="how it ended">{escape(t.status)}</td></tr>'
        for t in report.trainings
    )
    drawings = figures.training_curves(report.trainings, [unit.name for unit in report.units], "t")
    panels = "\n".join(f"<figure><figcaption>{escape(c)}</figcaption>{drawing}</figure>" for c, drawing in drawings)
    legend = _training_legend(report) if drawings else ""
    return f"""<section><h2>How it was learned, and what crossed the wire</h2>
<div class="scroll"><table class="stack"><thead><tr><th>training</th><th class="text">traffic</th>
<th class="text">how it ended</th></tr></thead><tbody>{rows}</tbody></table></div>
{_NOT_PRIVATE if report.privacy is None else ""}
{legend}<div class="grid two">{panels}</div></section>"""


_NOT_PRIVATE = """<p class="aside"><b>Privacy budget:</b> none spent: nothing was made private. The table says what was
sent, which is not a bound on what could be inferred from it.</p>"""


def _privacy(report: Report) -> str:
    """What was promised to the units, what it was kept with, and what it does not cover."""
    told = report.privacy
    if told is None:
        return ""
    rows = []
    for name, unit in told.units.items():
        spent = "not kept" if unit.budget is None or unit.spent is None else f"{unit.spent:.3g} of {unit.budget[0]:.3g}"
        cells = [
            ("ε of this fit", f"{unit.epsilon:.3g}"),
            ("clip", f"{unit.clip:.3g}"),
            ("noise", f"{unit.sigma:.3g}"),
            ("ε of its budget", spent),
        ]
        tds = "".join(f'<td data-label="{escape(label)}">{escape(text)}</td>' for label, text in cells)
        rows.append(f"<tr><td>{escape(plain(name))}</td>{tds}</tr>")
    head = "".join(f"<th>{escape(label)}</th>" for label, _ in cells)
    first, *more = (escape(_capital(text)) for text in told.sentences())
    notes = "".join(f"<li>{text}.</li>" for text in more)
    return f"""<section><h2>What was promised to measurements</h2><p>{first}.</p>
<div class="scroll"><table class="stack"><thead><tr><th>unit</th>{head}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>
<ul class="notes">{notes}</ul></section>"""


def _training_legend(report: Report) -> str:
    shown = [t for t in report.trainings if len(t.history) > 1]
    longest = max(shown, key=lambda t: len(t.history))
    entries = [f'<li><i style="color:var(--series-0)"></i>{escape(longest.label)}</li>']
    others = [t for t in shown if t is not longest]
    entries += [
        f'<li><i class="dashed" style="color:var(--series-{k + 1})"></i>{escape(t.label)}, where it ended</li>'
        for k, t in enumerate(others)
    ]
    entries += [
        f'<li><i style="color:var(--series-{(k + 3) % len(figures.SERIES)})"></i>{escape(plain(unit.name))}</li>'
        for k, unit in enumerate(report.units)
    ]
    return f'<ul class="legend" style="margin-top:1rem">{"".join(entries)}</ul>'


def _provenance(report: Report) -> str:
    if not report.provenance:
        return ""
    entries = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in report.provenance.items())
    return f"<section><h2>Where this comes from</h2><dl>{entries}</dl></section>"


def _capital(text: str) -> str:
    return (text[:1].upper() + text[1:]).rstrip(".")
