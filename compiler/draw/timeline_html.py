"""A timeline as a page of its own: the picture, and every transition in a table."""

from __future__ import annotations

from html import escape

from cfac.compiler.draw.timeline import Bar, Timeline, duration
from cfac.compiler.draw.timeline_layout import facts, total_text
from cfac.compiler.draw.timeline_svg import render as render_svg

_OPEN_ROWS = 80
_STYLE = """
:root{color-scheme:light dark}
body{margin:24px auto;max-width:1112px;padding:0 16px;background:#fff;color:#1b2330;
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
svg{display:block;max-width:100%;height:auto}
details{margin:20px 0}summary{cursor:pointer;font-weight:600}
code,.argv{font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;color:#5b6675;
overflow-wrap:anywhere}
table{border-collapse:collapse;margin:10px 0;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:3px 10px 3px 0;text-align:left;border-bottom:1px solid #e2e7ee;vertical-align:top}
th{font-weight:600;font-size:12px;color:#5b6675}
.n{text-align:right;white-space:nowrap}.bad{color:#c62828}.dim{color:#5b6675}
pre{white-space:pre-wrap;font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
@media (prefers-color-scheme:dark){
body{background:#12161c;color:#e3e8ef}th,.dim,code,.argv{color:#9ba7b6}
th,td{border-color:#2d3743}.bad{color:#ff6b64}}
"""


def render(timelines: list[Timeline]) -> str:
    """One page without scripts and external assets."""
    title = escape(" / ".join(timeline.name for timeline in timelines))
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>Startup timeline: {title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n",
        render_svg(timelines),
    ]
    parts += [_run(timeline) for timeline in timelines]
    return "".join(parts) + "</body>\n</html>\n"


def _run(timeline: Timeline) -> str:
    rows = "".join(_row(bar) for bar in timeline.bars)
    notes = "".join(
        f'<p class="{"bad" if bad else "dim"}">{escape(fact)}</p>\n'
        for fact, bad in facts(timeline)
    )
    stalls = "".join(
        f'<pre class="dim">{duration(mark.time)}: {mark.kind}\n{escape(mark.text)}</pre>\n'
        for mark in timeline.marks
        if mark.kind in {"stall", "note"} and not mark.component
    )
    same = timeline.name == timeline.id
    number = "" if same else f" <code>{escape(timeline.id)}</code>"
    opened = " open" if len(timeline.bars) <= _OPEN_ROWS else ""
    return (
        f"<details{opened}>\n<summary>{escape(timeline.name)}: "
        f"{escape(total_text(timeline))}{number}</summary>\n"
        f'<p class="argv">{escape(timeline.argv)}</p>\n{notes}'
        "<table>\n<thead><tr><th>component</th><th>state</th>"
        '<th class="n">begin, s</th><th class="n">end, s</th><th class="n">took</th>'
        '<th class="n">waited</th><th>after</th></tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table>\n{stalls}</details>\n"
    )


def _row(bar: Bar) -> str:
    if bar.kind == "initial":
        begin = took = ""
    elif not bar.begun:
        begin, took = "never", ""
    else:
        begin = f"{bar.begin:.6f}" if bar.known else "not recorded"
        took = "" if bar.open else duration(bar.end - bar.begin)
    end = "never" if bar.open else f"{bar.end:.6f}"
    waited = duration(bar.wait) if bar.wait > 0 else ""
    after = ", ".join(bar.needs[:12]) + (" …" if len(bar.needs) > 12 else "")
    cells = [("", bar.component), ("", bar.state), ("n", begin), ("n", end), ("n", took)]
    cells += [("n", waited), ("dim", after)]
    inner = "".join(
        f'<td class="{kind}">{escape(words)}</td>' if kind else f"<td>{escape(words)}</td>"
        for kind, words in cells
    )
    return f'<tr class="bad">{inner}</tr>\n' if bar.open else f"<tr>{inner}</tr>\n"
