"""YAML text to nodes that know their positions.

Scalars follow the YAML 1.2 core schema, with one stricter rule: a decimal with a
leading zero (``010``) stays text, since YAML 1.1 and 1.2 disagree about it.
Nodes are built from parser events with an explicit stack, so hostile input can
neither overflow the stack (depth is bounded) nor explode through aliases (the
size after expansion is bounded).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.model import Scalar

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 500_000

_LOADER: Any = getattr(yaml, "CLoader", yaml.Loader)
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_FORBIDDEN = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OCT = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = {".nan", ".NaN", ".NAN"}
_STR_TAGS = {"!", "tag:yaml.org,2002:str"}


@dataclass(slots=True, eq=False)
class ScalarNode:
    """A scalar: ``text`` as written (unescaped), ``value`` by the core schema."""

    value: Scalar
    text: str
    span: Span
    inner: int | None = None
    """The column of ``text[0]``, or None where the text is not one piece of one line."""

    def part(self, start: int, end: int) -> Span:
        """The position of ``text[start:end]``; of all of it where that is unknown."""
        if self.inner is None:
            return self.span
        column = self.inner + start
        return Span(self.span.file, self.span.line, column, max(self.inner + end, column + 1))

    @property
    def text_span(self) -> Span:
        """The position of the text without its quotes."""
        return self.part(0, len(self.text))


@dataclass(slots=True, eq=False)
class ListNode:
    """A sequence."""

    items: tuple[Node, ...]
    span: Span


@dataclass(slots=True, eq=False)
class MapNode:
    """A mapping; keys are scalars and occur once."""

    entries: tuple[tuple[ScalarNode, Node], ...]
    span: Span
    _index: dict[str, tuple[ScalarNode, Node]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._index = {k.text: (k, v) for k, v in self.entries}

    def get(self, key: str) -> Node | None:
        """The value of ``key``, or None where it is absent."""
        found = self._index.get(key)
        return found[1] if found else None

    def key(self, key: str) -> ScalarNode | None:
        """The key's own node, or None where it is absent."""
        found = self._index.get(key)
        return found[0] if found else None


Node = ScalarNode | ListNode | MapNode


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` as YAML counts them."""
    return _LINE_BREAK.split(text)


def to_data(node: Node) -> Any:
    """Plain Python data: dicts, lists and scalars."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, ListNode):
        return [to_data(item) for item in node.items]
    return {key.text: to_data(value) for key, value in node.entries}


def core_scalar(text: str) -> Scalar:
    """The value of a plain scalar by the YAML 1.2 core schema."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if len(text) > 300 or text[0] not in "+-.0123456789":
        return text
    for pattern, base in ((_INT, 10), (_OCT, 8), (_HEX, 16)):
        if pattern.fullmatch(text):
            return int(text, 10) if base == 10 else int(text[2:], base)
    if _INF.fullmatch(text) or text in _NAN:
        return float(text.replace(".", ""))
    if _FLOAT.fullmatch(text) and not _LEADING_ZERO.fullmatch(text):
        return float(text)
    return text


def read_text(path: Path, file: str, diagnostics: Diagnostics, at: Span | None) -> str | None:
    """The text of a spec file, without a byte-order mark; None after an error.

    ``at`` is where the file was asked for (an ``include``), if anywhere.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        diagnostics.error("CF101", f"cannot read {file!r}: {reason}", at)
        return None
    if len(raw) > MAX_BYTES:
        limit = MAX_BYTES // (1024 * 1024)
        diagnostics.error("CF101", f"{file!r} is larger than {limit} MiB", at)
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        body = raw[3:] if raw.startswith(b"\xef\xbb\xbf") else raw
        before = split_lines(body[: error.start].decode("utf-8", "replace"))
        column = len(before[-1]) + 1
        hint = "save the file as UTF-8"
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = "the file looks like UTF-16; " + hint
        span = Span(file, len(before), column, column + 1)
        byte = f"0x{body[error.start]:02x}"
        diagnostics.error("CF102", f"not UTF-8: invalid byte {byte}", span, help=hint)
        return None


def parse(text: str, file: str, diagnostics: Diagnostics) -> MapNode | None:
    """The document's top mapping; None after an error that leaves nothing to read."""
    forbidden = _FORBIDDEN.search(text)
    if forbidden:
        before = split_lines(text[: forbidden.start()])
        column = len(before[-1]) + 1
        code = f"U+{ord(forbidden.group()):04X}"
        message = f"the character {code} is not allowed in YAML"
        span = Span(file, len(before), column, column + 1)
        diagnostics.error("CF102", message, span, help="remove it, or write it as an escape")
        return None
    return _Builder(text, file, diagnostics).build()


class _FatalError(Exception):
    """Nothing more can be read from this file; the diagnostic is already added."""


@dataclass(slots=True)
class _Frame:
    """A collection under construction."""

    start: Any
    is_map: bool
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[ScalarNode, Node]] = field(default_factory=list)
    first: dict[str, ScalarNode] = field(default_factory=dict)
    key: ScalarNode | None = None
    skip: bool = False
    size: int = 1


class _Builder:
    """Builds nodes from the parser's events."""

    def __init__(self, text: str, file: str, diagnostics: Diagnostics) -> None:
        self.text = text
        self.file = file
        self.lines = split_lines(text)
        self.diagnostics = diagnostics
        self.stack: list[_Frame] = []
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.root: Node | None = None

    def build(self) -> MapNode | None:
        try:
            self._run(yaml.parse(self.text, Loader=_LOADER))
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
            return None
        except (_FatalError, yaml.YAMLError) as error:
            if not isinstance(error, _FatalError):
                self.diagnostics.error("CF103", f"invalid YAML: {error}", self._at(0, 0))
            return None
        root = self.root
        if root is None or (isinstance(root, ScalarNode) and root.value is None):
            self.diagnostics.error(
                "CF106",
                "the file is empty",
                self._at(0, 0),
                help="a spec begins with 'apiVersion: cfac/v1'",
            )
            return None
        if not isinstance(root, MapNode):
            self.diagnostics.error(
                "CF106", f"expected a mapping at the top, found {describe(root)}", root.span
            )
            return None
        return root

    def _run(self, events: Iterator[Any]) -> None:
        documents = 0
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._add(self._scalar(event), event.anchor, 1)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._start(event)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._end(event)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    span = self._mark(event)
                    message = "a second document starts here; a spec file holds one"
                    self.diagnostics.error("CF106", message, span, help="use 'include' instead")
                    return

    # -- positions -----------------------------------------------------------

    def _at(self, line: int, column: int, end: int | None = None) -> Span:
        if line >= len(self.lines):  # libyaml counts a break at the end of the file
            line = len(self.lines) - 1
            column, end = len(self.lines[line]), None
        stop = end if end is not None and end > column else column + 1
        return Span(self.file, line + 1, column + 1, stop + 1)

    def _mark(self, event: Any) -> Span:
        start, end = event.start_mark, event.end_mark
        if end.line == start.line:
            return self._at(start.line, start.column, end.column)
        line = self.lines[start.line] if start.line < len(self.lines) else ""
        return self._at(start.line, start.column, len(line.rstrip()))

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        span = self._at(mark.line, mark.column) if mark else self._at(0, 0)
        problem = error.problem or "invalid YAML"
        notes: list[Note] = []
        if error.context and error.context_mark:
            where = error.context_mark
            notes.append(Note(error.context, self._at(where.line, where.column)))
        help_text = None
        if mark and "anchor" not in problem and mark.line < len(self.lines):
            rest = self.lines[mark.line][mark.column :]
            indent = self.lines[mark.line][: mark.column + 1]
            if "\t" in indent and not indent.strip():
                help_text = "YAML is indented by spaces, not by tabs"
            elif rest[:1] in ("@", "`", "%", "*", "&"):
                help_text = "put the text in quotes"
        self.diagnostics.error("CF103", problem, span, notes=notes, help=help_text)

    # -- building ------------------------------------------------------------

    def _scalar(self, event: Any) -> ScalarNode:
        text: str = event.value
        start, end, style, tag = event.start_mark, event.end_mark, event.style, event.tag
        span = self._mark(event)
        plain = not style
        one_line = end.line == start.line
        if plain and tag is None and one_line and end.column - start.column == len(text) > 0:
            return ScalarNode(core_scalar(text), text, span, span.column)  # as most are
        value: Scalar = text
        if tag is not None and tag not in _STR_TAGS:
            self._tag(event)
        elif tag is None and plain:
            value = core_scalar(text)
        inner = None
        if one_line and style in (None, "", "'", '"'):
            line = self.lines[span.line - 1]
            shown = line[span.column - 1 : span.end_column - 1]
            offset = shown.find(text) if text else -1
            if offset >= 0 and len(shown) - len(text) <= (0 if plain else 2):
                inner = span.column + offset
        return ScalarNode(value, text, span, inner)

    def _tag(self, event: Any) -> None:
        shown = event.tag.replace("tag:yaml.org,2002:", "!!")
        self.diagnostics.error(
            "CF105",
            f"the tag {shown} is not supported",
            self._mark(event),
            help="leave the tag away; put text in quotes",
        )

    def _start(self, event: Any) -> None:
        if len(self.stack) >= MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} deep"
            self.diagnostics.error("CF103", message, self._at_start(event))
            raise _FatalError
        if event.tag is not None and not event.implicit and event.tag != "!":
            self._tag(event)
        frame = _Frame(event, isinstance(event, yaml.MappingStartEvent), event.anchor)
        self.stack.append(frame)

    def _at_start(self, event: Any) -> Span:
        return self._at(event.start_mark.line, event.start_mark.column)

    def _end(self, event: Any) -> None:
        frame = self.stack.pop()
        start = frame.start
        if start.flow_style and event.end_mark.line == start.start_mark.line:
            mark = start.start_mark
            span = self._at(mark.line, mark.column, event.end_mark.column)
        elif frame.is_map and frame.pairs and not start.flow_style:
            span = frame.pairs[0][0].span
        else:
            span = self._at_start(start)
        node: Node
        if frame.is_map:
            node = MapNode(tuple(frame.pairs), span)
        else:
            node = ListNode(tuple(frame.items), span)
        self._add(node, frame.anchor, frame.size)

    def _alias(self, event: Any) -> None:
        span = self._mark(event)
        if any(frame.anchor == event.anchor for frame in self.stack):
            message = f"the alias *{event.anchor} contains itself"
            self.diagnostics.error("CF105", message, span)
            raise _FatalError
        found = self.anchors.get(event.anchor)
        if found is None:
            message = f"the alias *{event.anchor} has no anchor &{event.anchor} before it"
            hint = "put the text in quotes if it is not meant as an alias"
            self.diagnostics.error("CF105", message, span, help=hint)
            self._add(ScalarNode(None, "", span), None, 1)
            return
        node, size = found
        if sum(frame.size for frame in self.stack) + size > MAX_NODES:
            message = f"aliases expand to more than {MAX_NODES} values"
            self.diagnostics.error("CF105", message, span)
            raise _FatalError
        self._add(node, None, size)

    def _add(self, node: Node, anchor: str | None, size: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = (node, size)
        if not self.stack:
            if self.root is None:
                self.root = node
            return
        frame = self.stack[-1]
        frame.size += size
        if not frame.is_map:
            frame.items.append(node)
        elif frame.key is None and not frame.skip:
            self._key(frame, node)
        else:
            if frame.key is not None and not frame.skip:
                frame.pairs.append((frame.key, node))
            frame.key, frame.skip = None, False

    def _key(self, frame: _Frame, node: Node) -> None:
        if not isinstance(node, ScalarNode):
            frame.skip = True
            message = f"a key must be text, not {describe(node)}"
            self.diagnostics.error("CF105", message, node.span)
            return
        if node.text == "<<" and node.inner == node.span.column:
            frame.skip = True
            message = "merge keys (<<) are not part of YAML 1.2"
            hint = "write the keys out, or use 'include'"
            self.diagnostics.error("CF105", message, node.span, help=hint)
            return
        earlier = frame.first.get(node.text)
        if earlier is not None:
            frame.skip = True
            self.diagnostics.error(
                "CF104",
                f"duplicate key {node.text!r}",
                node.span,
                notes=[Note("first given here", earlier.span)],
            )
            return
        frame.first[node.text] = node
        frame.key = node


def describe(node: Node) -> str:
    """What a node is, in words for a message."""
    if isinstance(node, ListNode):
        return "a list"
    if isinstance(node, MapNode):
        return "a mapping"
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {node.text}"
    if isinstance(value, (int, float)):
        return f"the number {node.text}"
    text = value if len(value) <= 40 else value[:37] + "..."
    return f"the text {text!r}"
