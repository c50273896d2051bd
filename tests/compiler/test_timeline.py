"""Timelines read back: the model of a run, and the picture without overlap or clipping."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET

import pytest
from recorded_runs import component, plan, write

from cfac.compiler.draw import (
    text,
    timeline_client,
    timeline_html,
    timeline_layout,
    timeline_perfetto,
    timeline_svg,
    timeline_text,
)
from cfac.compiler.draw.timeline import duration, read
from cfac.runtime.history import read_run

NS = "{http://www.w3.org/2000/svg}"
SIZES = {"title": 13.5 * 1.12, "name": 12 * 1.12}


def born(ms):
    return {"e": "process", "pid": 7, "ppid": 1, "name": "x", "argv": [], "started": int(ms * 1e6)}


def failed(who, cause, state="Start"):
    return {"e": "failed", "c": who, "s": state, "cause": cause}


CORE = component(["Start", "Made", "Ready"])
CORE["aux"] = ["Made"]
WORKER = component(["Start", "Up"], 2)
MADE = plan({"core": CORE, "w": WORKER}, {"core.Ready": ["w.*.Up"]})
STARTS = [(100, born(20)), (100, "publish core.Start"), (100.5, "publish w[0].Start"),
          (100.6, "publish w[1].Start")]  # fmt: skip
RUN = [
    *STARTS, (180, "publish core.Made"), (180.001, "wait core.Ready"), (250, "publish w[0].Up"),
    (300, "publish w[1].Up"), (301, "begin core.Ready"), (301.004, "publish core.Ready"),
]  # fmt: skip
WORKERS = plan({"core": component(["Start"]), "w": component(["Start", "Up"], 64)})
CHUNKS = plan({"c": component(["Start", *(f"State{k}" for k in range(3000))])})
DENSE = [(10, born(1)), (10, "publish c.Start"),
         *((10 + k / 1000, f"publish c.State{k}") for k in range(2999)),
         (900, "publish c.State2999")]  # fmt: skip
HOSTILE = '<a href="x">&amp;\x1b[31m"; drop\u202e\ud800'
GROUP = plan({"a": component(["Start", "One", "Two"])})

RUNS = {
    "good": (MADE, RUN),
    "failed": (MADE, [*STARTS, (180, "begin core.Made"), (190, failed("core", "it broke " * 80))]),
    "root failed": (MADE, [*STARTS, (190, failed("the root process", "gone"))]),
    "waiting": (MADE, [*STARTS, (110, "publish core.Made"), (111, "wait core.Ready"),
                       (5000, {"e": "stall", "who": "core.Ready", "text": "  core waits\n  more"}),
                       (6000, failed("core", "gave up"))]),
    "microseconds at the end": (MADE, [*RUN[:-2], (50_000, "begin core.Ready"),
                                       (50_000.001, "publish core.Ready")]),
    "one instant": (CHUNKS, [(1, "publish c.Start"),
                             *((1, f"publish c.State{k}") for k in range(20))]),
    "dense": (CHUNKS, DENSE),
    "replicas": (WORKERS, [(1, "publish core.Start"),
                           *((2 + k / 9, f"publish w[{k}].Start") for k in range(64)),
                           *((50 + k * 2, f"publish w[{k}].Up") for k in range(64))]),
    "nothing": (MADE, []),
    "no plan": (None, RUN),
    "undeclared": (MADE, [*RUN, (310, "begin x.Odd"), (320, "publish x.Odd"),
                          (330, "publish core.Extra")]),
    "merged": (GROUP, [(1, "publish a.Start"), (2, "begin a.One"), (2.001, "begin a.Two"),
                       (50, "publish a.One"), (50.002, "publish a.Two")]),
    "hostile": (None, [(1, {"e": "publish", "c": HOSTILE, "i": None, "s": HOSTILE}),
                       (9, {"e": "publish", "c": HOSTILE, "i": None, "s": "w" * 300}),
                       (9, failed(HOSTILE, HOSTILE * 9, HOSTILE))]),
}  # fmt: skip


@pytest.fixture
def load(tmp_path):
    def one(name, title=None):
        made, steps = RUNS[name]
        folder = write(tmp_path / name, made, steps)
        return read(read_run(folder), title)

    return one


def bars(timeline):
    return {bar.name: bar for bar in timeline.bars}


# -- the model ----------------------------------------------------------------------


def test_times_count_from_the_birth_of_the_first_process(load):
    timeline = load("good")
    assert timeline.complete and timeline.missing == [] and timeline.states == 7
    assert timeline.total == pytest.approx(0.281004) == timeline.end
    assert [lane.name for lane in timeline.lanes] == ["core", "w[0]", "w[1]"]
    assert timeline.lanes[0].born == 0 and timeline.lanes[0].alive == pytest.approx(0.08)
    found = bars(timeline)
    made, ready = found["core.Made"], found["core.Ready"]
    assert (made.begin, made.end) == pytest.approx((0.08, 0.16)) and made.kind == "aux"
    assert ready.wait == pytest.approx(0.120999) and ready.gate == "w[1].Up"
    assert ready.needs == ("w[0].Up", "w[1].Up")
    assert found["core.Start"].kind == "initial"


def test_an_engines_own_wait_counts_from_the_state_before(load, tmp_path):
    steps = [step for step in RUN if not str(step[1]).startswith("wait")]
    ready = bars(read(read_run(write(tmp_path / "own", MADE, steps))))["core.Ready"]
    assert ready.waited == pytest.approx(0.16) and ready.gate == "w[1].Up"


def test_a_run_in_a_process_that_is_hours_old(tmp_path):
    steps = [(7_200_000 + t, s if isinstance(s, str) else born(0)) for t, s in RUN]
    timeline = read(read_run(write(tmp_path / "old", MADE, steps)))
    assert timeline.before == pytest.approx(7200.1)
    assert timeline.total == pytest.approx(0.201004)
    assert "had run for 2.0 h before" in timeline_text.render(timeline)


def test_a_root_process_without_a_component_has_a_lane_of_its_own(tmp_path):
    folder = write(
        tmp_path / "launched", MADE, [(40, born(10)), (40, {"e": "params", "values": {}})]
    )
    events = [{"t": 90 * 10**6, "e": "publish", "c": "core", "i": None, "s": "Start"}]
    events.append({"t": 95 * 10**6, **born(60), "pid": 8})
    (folder / "8.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    timeline = read(read_run(folder))
    launcher, core, *_ = timeline.lanes
    assert (launcher.name, launcher.born, launcher.alive) == ("x", 0, pytest.approx(0.03))
    assert (core.name, core.born, core.alive) == ("core", pytest.approx(0.05), pytest.approx(0.08))
    assert "never appeared" not in timeline_text.render(timeline).partition("core")[0]


def test_a_failed_transition_is_open(load):
    timeline = load("failed")
    made = bars(timeline)["core.Made"]
    assert made.open and made.begun and made.end == pytest.approx(0.17)
    assert not timeline.complete
    assert timeline.missing == ["core.Made", "core.Ready", "w[0].Up", "w[1].Up"]


def test_an_unanswered_wait_is_open(load):
    ready = bars(load("waiting"))["core.Ready"]
    assert ready.open and not ready.begun and ready.gate == "w[0].Up"


def test_a_failure_after_the_last_state_leaves_the_start_complete(tmp_path):
    steps = [*RUN, (99_000, failed("core", "killed"))]
    timeline = read(read_run(write(tmp_path / "late", MADE, steps)))
    assert timeline.complete and timeline.end == timeline.total
    assert "98.7 s after the last state: core failed in state Start: killed" in [
        fact for fact, _ in timeline_layout.facts(timeline)
    ]


def test_a_state_that_is_a_processs_end_does_not_stretch_the_start(tmp_path):
    made = plan({"core": component(["Start", "Ready", "Ended"])})
    made["transitions"]["core.Ended"]["exit"] = True
    steps = [(1, "publish core.Start"), (5, "publish core.Ready"), (10**7, "publish core.Ended")]
    timeline = read(read_run(write(tmp_path / "exit", made, steps)))
    assert timeline.complete and timeline.total == pytest.approx(0.004)
    assert "core.Ended" not in bars(timeline)
    assert any("core.Ended" in fact for fact, _ in timeline_layout.facts(timeline))


def test_a_begin_that_was_not_recorded(tmp_path):
    steps = [step for step in RUN if not re.match("wait|begin", str(step[1]))]
    ready = bars(read(read_run(write(tmp_path / "none", MADE, steps))))["core.Ready"]
    assert not ready.known and ready.waited is None and ready.begin == pytest.approx(0.16)


def test_a_merged_group_is_one_bar(load):
    (lane,) = load("merged").lanes
    assert [[bar.state for bar in group] for group in lane.joined()] == [["Start"], ["One", "Two"]]


def test_what_a_client_saw_is_a_lane_that_ends_the_picture(load):
    timeline = load("good")
    healthy, token = timeline.origin + 400_000_000, timeline.origin + 900_000_000
    steps = [("Healthy", healthy), ("FirstToken", token)]
    timeline_client.add(timeline, "client", steps, after="core.Ready")
    assert timeline.total == timeline.end == pytest.approx(0.9)
    assert timeline.complete and timeline.states == 9
    lane = timeline.lanes[-1]
    assert [(bar.state, bar.gate) for bar in lane.bars] == [
        ("Healthy", "core.Ready"),
        ("FirstToken", None),
    ]
    first, last = lane.bars
    assert (first.waited, first.begin) == (0.0, bars(timeline)["core.Ready"].end)
    assert (first.end, last.begin, last.end) == pytest.approx((0.4, 0.4, 0.9))
    picture = timeline_layout.layout([load("good", "before"), timeline])
    assert [strip.lane.name for strip in picture.blocks[1].strips][-1] == "client"
    assert "client.Healthy after core.Ready" in [a[4] for a in picture.blocks[1].arrows]


def test_a_client_of_a_run_that_never_got_there_waits_for_nothing(load):
    timeline = load("failed")
    timeline_client.add(timeline, "client", [("Gone", timeline.origin + 10**9)], "core.Ready")
    (bar,) = timeline.lanes[-1].bars
    assert (bar.begin, bar.waited, bar.gate) == (0.0, None, None)
    assert not timeline.complete


def test_a_clients_times_cannot_go_backwards(load):
    timeline = load("good")
    with pytest.raises(ValueError, match=r"client\.Healthy is 0\.181.* s before"):
        timeline_client.add(
            timeline, "client", [("Healthy", timeline.origin + 10**8)], after="core.Ready"
        )
    assert len(timeline.lanes) == 3 and timeline.states == 7


@pytest.mark.parametrize(
    "seconds, words",
    [(0, "0 µs"), (4e-6, "4 µs"), (9.9949e-4, "999 µs"), (0.00123, "1.2 ms"), (0.0711, "71 ms"),
     (0.9996, "1.00 s"), (9.996, "10.0 s"), (51.8, "51.8 s"), (1234, "1234 s"), (7200, "2.0 h")],
)  # fmt: skip
def test_durations(seconds, words):
    assert duration(seconds) == words


# -- the picture --------------------------------------------------------------------


def number(element, name):
    return float(element.get(name, "0"))


def texts(root):
    """Every text that is drawn, as (left, right, baseline, words, class)."""
    found = []

    def visit(element, dx, dy, kind):
        move = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
        if move:
            dx, dy = dx + float(move[1]), dy + float(move[2])
        kind = f"{kind} {element.get('class', '')}" if element.tag == f"{NS}g" else kind
        if element.tag == f"{NS}text":
            words = "".join(t for t in [element.text, *(c.tail for c in element)] if t)
            own = (element.get("class") or "").split()
            inside = 11 if "bar" in kind.split() else 10.5
            size = next((SIZES[c] for c in own if c in SIZES), inside)
            x, y = dx + number(element, "x"), dy + number(element, "y")
            found.append((x, x + text.width(words, size), y, words, own))
        for child in element:
            visit(child, dx, dy, kind)

    visit(root, 0.0, 0.0, "")
    return found


PICTURES = [[name] for name in RUNS] + [["good", "failed"], ["microseconds at the end", "good"]]


@pytest.mark.parametrize("names", PICTURES, ids="+".join)
def test_picture(load, names):
    timelines = [load(name) for name in names]
    root = ET.fromstring(timeline_svg.render(timelines).encode("utf-8", "backslashreplace"))
    wide, high = number(root, "width"), number(root, "height")
    for rect in root.iter(f"{NS}rect"):
        x, y = number(rect, "x"), number(rect, "y")
        assert number(rect, "width") > 0 and number(rect, "height") > 0
        assert x >= 0 and y >= 0
        assert x + number(rect, "width") <= wide + 0.1 and y + number(rect, "height") <= high
    drawn = texts(root)
    for left, right, y, words, _ in drawn:
        assert left >= 0 and right <= wide + 0.5, words
        assert 10 <= y <= high - 3, words
    for a, b in itertools.combinations(drawn, 2):
        apart = a[1] <= b[0] + 0.3 or b[1] <= a[0] + 0.3 or abs(a[2] - b[2]) >= 11.5
        assert apart, (a, b)
    for lane in root.iter(f"{NS}g"):
        if lane.get("class") == "lane":
            check_lane(lane, high)
    assert b"<script" not in ET.tostring(root) and "href" not in str(root.attrib)


def check_lane(lane, high):
    """Bars in order and apart; leaders cross no label; names fit in their bars."""
    groups = [g for g in lane if (g.get("class") or "").startswith("bar")]
    spans = []
    for group in groups:
        rect, words = group.find(f"{NS}rect"), group.find(f"{NS}text")
        x, width = number(rect, "x"), number(rect, "width")
        spans.append((x, x + width))
        assert width >= 1
        assert group.find(f"{NS}title").text
        if words is not None:
            assert number(words, "x") + text.width(words.text, 11) <= x + width + 0.5
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert begin >= end - 2.1  # a bar has at least 2 units
    labels = [t for t in texts(lane) if "label" in t[4]]
    for path in lane.iter(f"{NS}path"):
        if "leader" in (path.get("class") or ""):
            x, top, _, bottom = map(float, re.findall(r"-?[\d.]+", path.get("d")))
            assert 0 <= top < bottom <= high
            for left, right, y, words, _ in labels:
                crosses = left - 1 < x < right and top < y - 4 < bottom
                assert not crosses, (x, words)


@pytest.mark.parametrize("name", [n for n in RUNS if n not in {"dense", "replicas", "hostile"}])
def test_every_transition_is_named_in_the_picture(load, name):
    timeline = load(name)
    root = ET.fromstring(timeline_svg.render([timeline]))
    for lane in root.iter(f"{NS}g"):
        if lane.get("class") != "lane":
            continue
        words = " ".join(t[3] for t in texts(lane))
        more = re.search(r"\+ (\d+) more", words)
        states = {b.state for b in timeline.bars if b.component == lane.get("data-id")
                  and b.kind != "initial"}  # fmt: skip
        unnamed = [s for s in states if not re.search(rf"\b{s}\b", words)]
        assert len(unnamed) <= (int(more[1]) if more else 0)


def test_short_names_stand_above_in_a_staircase():
    labels = [timeline_layout.Label(x, "Constructed", 70) for x in (100, 100.2, 101, 400)]
    placed, dropped = timeline_layout.place(labels)
    assert dropped == 0
    assert {label.x: label.row for label in placed} == {400: 0, 101: 0, 100.2: 1, 100: 2}


def test_names_of_one_instant_read_downwards():
    labels = [timeline_layout.Label(100, name, 40) for name in ("One", "Two", "Three")]
    placed, _ = timeline_layout.place(labels)
    assert {label.text: label.row for label in placed} == {"One": 2, "Two": 1, "Three": 0}


def test_more_names_than_rows_are_counted():
    labels = [timeline_layout.Label(100 + k / 10, "State", 40) for k in range(20)]
    placed, dropped = timeline_layout.place(labels)
    assert dropped == 20 - timeline_layout.ROWS
    assert "+ 14 more" in [label.text for label in placed]


def test_of_many_replicas_the_slowest_are_drawn(load):
    svg = timeline_svg.render([load("replicas")])
    lanes = re.findall(r'class="lane" data-id="([^"]+)"', svg)
    assert lanes == ["core", "w[60]", "w[61]", "w[62]", "w[63]"]
    assert "w: the slowest 4 of 64 replicas are drawn" in svg


def test_a_failure_is_red_with_its_cause(load):
    root = ET.fromstring(timeline_svg.render([load("failed")]))
    notes = [t.text for t in root.iter(f"{NS}text") if "bad" in (t.get("class") or "")]
    assert any(note.startswith("170 ms: core failed in state Start: it broke") for note in notes)
    assert "never reached: core.Made, core.Ready, w[0].Up, w[1].Up" in notes
    assert sum(1 for g in root.iter(f"{NS}g") if g.get("class") == "cross") == 1


def test_before_and_after_share_one_axis(load):
    slow, fast = load("microseconds at the end", "before"), load("good", "after")
    picture = timeline_layout.layout([slow, fast])
    first, second = picture.blocks
    scale = (picture.right - picture.left) / slow.end
    assert first.end_x == pytest.approx(picture.right)
    assert second.end_x == pytest.approx(picture.left + fast.total * scale)
    assert second.remark.endswith("178\N{MULTIPLICATION SIGN} faster than before")


@pytest.mark.parametrize(
    "longest, labels",
    [(51.8, ["0", "5 s", "10 s"]), (0.7, ["0", "100 ms", "200 ms"]), (3e-4, ["0", "50 µs"]),
     (7e4, ["0", "10000 s"]), (2.5, ["0", "0.5 s", "1 s"])],
)  # fmt: skip
def test_ticks(longest, labels):
    ticks = timeline_layout._ticks(longest, 950)
    assert [label for _, label in ticks][: len(labels)] == labels
    assert 3 <= len(ticks) <= 12 and ticks[-1][0] <= longest * 1.0001


def test_page(load):
    page = timeline_html.render([load("good", "one & two"), load("failed")])
    assert page.startswith("<!doctype html>") and page.count("<svg") == 1
    assert "one &amp; two" in page and "prefers-color-scheme:dark" in page
    assert not re.search(r"<script|<link|<img|src=|url\(|@import", page)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert '<td>core</td><td>Made</td><td class="n">0.080000</td><td class="n">0.160000' in page
    assert page.count("<tr") == 2 + 7 + 4


@pytest.mark.parametrize("name", RUNS)
def test_hostile_or_not_the_page_and_text_are_clean(load, name):
    timeline = load(name)
    page = timeline_html.render([timeline])
    assert "<a href" not in page and "\x1b" not in page and "\u202e" not in page
    for pens in (timeline_text.UNICODE, timeline_text.ASCII):
        shown = timeline_text.render(timeline, 80, pens)
        assert "\x1b" not in shown and "\u202e" not in shown and "\ud800" not in shown


# -- text and Perfetto --------------------------------------------------------------


def test_text(load):
    lines = timeline_text.render(load("good"), 80).splitlines()
    assert lines[0] == "run made  made" and lines[1] == "all 7 states in 281 ms"
    assert lines[3].endswith("281 ms") and max(map(len, lines)) <= 80
    ready = next(line for line in lines if line.startswith("  Ready"))
    assert re.fullmatch(r"  Ready +0\.281 +4 µs +·{20,}█", ready)
    ascii_lines = timeline_text.render(load("good"), 80, timeline_text.ASCII)
    assert ascii_lines.isascii() and "####" in ascii_lines and "...." in ascii_lines


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["good", "merged", "dense", "replicas", "waiting"])
def test_text_keeps_its_width(load, name, width):
    chart, _, _ = timeline_text.render(load(name), width).partition("never reached")
    assert max(map(len, chart.splitlines())) <= width


def test_text_of_a_stalled_run(load):
    shown = timeline_text.render(load("waiting"))
    assert "NOT READY: 4 of 7 states" in shown
    assert "stall, 4.980 s:\n    core waits\n    more\n" in shown
    assert "failed, 5.980 s: core failed in state Start: gave up" in shown
    assert "never reached: core.Ready, w[0].Up, w[1].Up" in shown
    assert "still waiting: core.Ready for w[0].Up" in shown


@pytest.mark.parametrize("name", RUNS)
def test_perfetto(load, name):
    data = json.loads(timeline_perfetto.render([load(name, "x"), load(name)]))
    assert data["displayTimeUnit"] == "ms"
    named = {(e["pid"], e.get("tid")) for e in data["traceEvents"] if e["ph"] == "M"}
    spans: dict[int, list] = {}
    for event in data["traceEvents"]:
        assert event["ph"] in {"M", "X", "i"}
        assert isinstance(event["name"], str) and event["pid"] in (1, 2)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            assert (event["pid"], event["tid"]) in named
            spans.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "i":
            assert event["s"] in {"p", "t"} and event["ts"] >= 0
        else:
            assert event["name"].removeprefix("process").removeprefix("thread") in {
                "_name", "_sort_index",
            }  # fmt: skip
    for own in spans.values():  # slices of one track must nest; ours are one after the other
        own.sort()
        for (_, end), (begin, _) in itertools.pairwise(own):
            assert begin >= end - 0.002


def test_perfetto_times_are_microseconds(load):
    events = json.loads(timeline_perfetto.render([load("good")]))["traceEvents"]
    (made,) = (e for e in events if e["name"] == "Made")
    assert (made["ts"], made["dur"]) == (80_000, 80_000)
    (wait,) = (e for e in events if e["name"] == "wait: Ready")
    assert wait["args"] == {"for": ["w[0].Up", "w[1].Up"], "last": "w[1].Up"}
