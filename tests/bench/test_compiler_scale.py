"""The compiler's benchmark: irregular graphs without a cycle; time and memory stay linear."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_support import BENCH

from cfac.compiler.check import check
from cfac.compiler.plan import compile_plan, render_plan


def run(*arguments: str) -> str:
    command = [sys.executable, str(BENCH / "compiler.py"), *arguments]
    environment = {"PYTHONPATH": str(BENCH.parents[1])}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_table_and_json(tmp_path: Path) -> None:
    text = run("--sizes", "200", "400", "--json", str(tmp_path / "out.json"))
    assert [line.split()[0] for line in text.splitlines()][-2:] == ["200", "400"]
    best = json.loads((tmp_path / "out.json").read_text())["best"]
    assert [one["transitions"] for one in best] == [200, 400]
    for one in best:
        assert set(one["cpu_seconds"]) == {"load", "check", "merge", "plan"}
        assert 2 * one["transitions"] < one["waits"] < 4 * one["transitions"]
        assert one["groups"] > 0 and one["peak_bytes"] > one["spec_bytes"] > 0


def test_the_graphs_are_irregular_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import compiler  # type: ignore[import-not-found]  # noqa: TID251

    spec = compiler.irregular(500)
    shapes = {
        (len(c.states), tuple(str(d.ref) for s in c.states for d in s.after))
        for c in spec.components.values()
    }
    assert len(shapes) > 0.9 * len(spec.components)
    result = check(spec)
    assert result.ok and result.order is not None and len(result.order) == 500
    assert any(item.code == "CF303" for item in result.diagnostics)
    plan = json.loads(render_plan(compile_plan(spec)))
    assert len(plan["transitions"]) == 500 and plan["groups"]
    assert compiler.irregular(500) == spec


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_time_and_memory_are_linear(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    sizes = ["1000", "5000", "100000", "1000000"]
    for runs in ([*sizes[1:3], "-n", "3"], [sizes[0], sizes[3]]):
        run("--sizes", *runs, "--json", str(tmp_path / f"{len(runs)}.json"))
    best = [
        one
        for name in ("4.json", "2.json")
        for one in json.loads((tmp_path / name).read_text())["best"]
    ]
    record_property("sizes", sorted(best, key=lambda one: one["transitions"]))
    small, large, _, largest = best
    for one, most in ((large, 2.5), (largest, 4)):  # caches are smaller than a million
        times = [
            sum(x["cpu_seconds"][name] for name in ("check", "merge", "plan")) / x["transitions"]
            for x in (small, one)
        ]
        assert times[1] < most * times[0]
    assert large["peak_bytes"] < 900 * 2**20
    assert largest["peak_bytes"] < 12 * large["peak_bytes"]
