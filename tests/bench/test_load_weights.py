"""The benchmark of vLLM's loading, as far as it goes without an engine."""

from __future__ import annotations

import configparser
import json
import os
import tomllib
from pathlib import Path

import load_weights
import pytest
from bench_support import ROOT


def test_the_engine_sees_the_plugins_that_an_installation_declares(tmp_path):
    environment = load_weights.plugin(tmp_path)
    first, second = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(first), Path(second)) == (tmp_path, ROOT)
    (written,) = tmp_path.glob("*.dist-info/entry_points.txt")
    entries = configparser.ConfigParser(delimiters=["="])
    entries.read(written)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group: dict(entries[group]) for group in entries.sections()} == declared


class Engine:
    """Stands for a vLLM in what it logs and answers: a double, as a wrong answer cannot be had."""

    def __init__(self, log: str, answer: str) -> None:
        self.log, self.answer = log, answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_ready(self, timeout):
        pass

    def complete(self, prompt, tokens):
        return {"text": self.answer}


TOOK = "INFO Loading weights took 1.25 seconds\n"
OWN = "Loading safetensors checkpoint shards (cfac): 100%\n"


@pytest.mark.parametrize(
    ("own", "answer", "message"),
    [
        (TOOK, "a", "cfac: its loader was not used"),
        (OWN + TOOK + "cfac: vLLM's own reader is used: why\n", "a", "was not used"),
        (OWN, "a", "tells 0 times"),
        (OWN + TOOK, "b", "cfac, warm: it answers differently"),
    ],
)
def test_what_is_no_comparison_is_a_failure_with_an_engine_double(
    monkeypatch, tmp_path, own, answer, message
):
    def server(engine, model, environment, arguments):
        return Engine(own, answer) if arguments else Engine(TOOK, "a")

    monkeypatch.setattr(load_weights, "Server", server)
    monkeypatch.setattr(load_weights, "SIDES", {"a stock": [], "cfac": ["--load-format=cfac"]})
    with pytest.raises(load_weights.BenchFailed, match=message):
        load_weights.measure(tmp_path, tmp_path, 2, {})


def test_rounds_are_interleaved_and_reported_with_an_engine_double(monkeypatch, tmp_path, capsys):
    order = []

    def server(engine, model, environment, arguments):
        order.append("cfac" if arguments else "stock")
        return Engine(OWN + TOOK if arguments else TOOK.replace("1.25", "2.5"), "a")

    monkeypatch.setattr(load_weights, "Server", server)
    found, rounds = load_weights.measure(tmp_path, tmp_path, 2, {})
    assert order == ["cfac", "stock", "stock", "cfac", "stock", "cfac", "cfac", "stock"]
    assert found == {c: {"stock": [2.5, 2.5], "cfac": [1.25, 1.25]} for c in ("warm", "cold")}
    ratios = load_weights.report(found, 10**9)
    assert rounds == 2 and ratios["cold"]["median"] == pytest.approx(2)
    assert "0.80" in capsys.readouterr().out  # GB/s
    json.dumps(ratios)
