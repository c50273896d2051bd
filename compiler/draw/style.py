"""The SVG's style sheet: plain colours by class, so that simple viewers show it too."""

from __future__ import annotations

_BASE = """
.cfac text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-size:12px;fill:#1b2330}
.cfac .page{fill:#fff}
.cfac .title{font-size:15px;font-weight:600}
.cfac .sub,.cfac .legend{font-size:10.5px;fill:#5b6675}
.cfac .meta{font-size:9.5px;fill:#5b6675}
.cfac .lane rect{fill:#f4f6f9}
.cfac .lane .name{font-size:12.5px;font-weight:600}
.cfac .elbow{fill:none;stroke:#a9b3c0;stroke-width:1.2}
.cfac .node text{text-anchor:middle}
.cfac .node rect{fill:#fff;stroke:#46556b;stroke-width:1.3}
.cfac .node.initial rect{fill:#e6eaf0;stroke:#8793a3}
.cfac .node.aux rect{fill:#e7f3ee;stroke:#23805c;stroke-dasharray:4 2.5}
.cfac .node.ghost rect{fill:none;stroke:#a9b3c0;stroke-dasharray:2 3}
.cfac .node.ghost text{fill:#5b6675;font-style:italic}
.cfac .node.cyclic rect{fill:#fdecea;stroke:#c62828;stroke-width:2}
.cfac path.own,.cfac path.after,.cfac path.schedule{fill:none;stroke:#97a3b3;stroke-width:1.4}
.cfac path.after{stroke:#2563c4}
.cfac path.schedule{stroke:#2563c4;stroke-dasharray:5 3.5}
.cfac path.cyclic{stroke:#c62828;stroke-width:2.2}
.cfac path.head{stroke:none;fill:#97a3b3}
.cfac path.head.after,.cfac path.head.schedule{fill:#2563c4}
.cfac path.head.cyclic{fill:#c62828}
.cfac .edge:hover path{stroke-width:3}
.cfac .edge:hover path.head{stroke-width:0}
.cfac .label rect{fill:#f4f6f9}
.cfac .label text{font-size:9.5px;text-anchor:middle;fill:#2563c4}
.cfac .label.cyclic text{fill:#c62828}
.cfac .group rect{fill:#f3e8fb;fill-opacity:.7;stroke:#8b45b8;stroke-width:1.2}
.cfac .group text{font-size:9.5px;fill:#7a35a6}
"""

_DARK = """
.cfac text{fill:#e3e8ef}
.cfac .page{fill:#12161c}
.cfac .sub,.cfac .legend,.cfac .meta{fill:#9ba7b6}
.cfac .lane rect{fill:#1a2029}
.cfac .elbow{stroke:#556273}
.cfac .node rect{fill:#232b36;stroke:#a3b1c2}
.cfac .node.initial rect{fill:#2d3743;stroke:#6d7b8c}
.cfac .node.aux rect{fill:#16302a;stroke:#4fc797}
.cfac .node.ghost rect{fill:none;stroke:#556273}
.cfac .node.ghost text{fill:#9ba7b6}
.cfac .node.cyclic rect{fill:#3d1a1c;stroke:#ff6b64}
.cfac path.own{stroke:#6d7b8c}
.cfac path.after,.cfac path.schedule{stroke:#6ea8ff}
.cfac path.cyclic{stroke:#ff6b64}
.cfac path.head{fill:#6d7b8c;stroke:none}
.cfac path.head.after,.cfac path.head.schedule{fill:#6ea8ff}
.cfac path.head.cyclic{fill:#ff6b64}
.cfac .label rect{fill:#1a2029}
.cfac .label text{fill:#6ea8ff}
.cfac .label.cyclic text{fill:#ff6b64}
.cfac .group rect{fill:#33204a;stroke:#bd86e6}
.cfac .group text{fill:#d3aef0}
"""

CSS = _BASE + "@media (prefers-color-scheme:dark){" + _DARK + "}\n"
