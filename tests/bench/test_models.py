"""The models that starts are measured with: deterministic, and what they say they are."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import make_model
import pytest
from bench_support import ROOT

SCRIPT = ROOT / "examples" / "vllm" / "make_model.py"
#: kind -> further arguments; ``large`` is made thin here, its shape is what counts.
KINDS = {
    "tiny": [],
    "large": ["--hidden", "512", "--layers", "5"],
    "qwen3": ["--vocab", "32768"],
    "moe": [],
}


@pytest.fixture(scope="session")
def python():
    named = os.environ.get("CFAC_TEST_ENGINE")
    engine = Path(named) if named else ROOT / "build" / "engine" / "vllm-0.32.0"
    setup = ROOT / "examples" / "vllm" / "setup_engine.py"
    subprocess.run([sys.executable, str(setup), "--dir", str(engine)], check=True)
    return engine / "bin" / "python"


def make(python, folder, *arguments, expect=0):
    command = [python, SCRIPT, folder, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
    assert done.returncode == expect, done.stderr
    return done.stderr


def hashes(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
    }  # fmt: skip


def tensors(folder):
    """name -> shape of all weights, read from the files' headers; and the files."""
    found, files = {}, sorted(folder.glob("*.safetensors"))
    for path in files:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        assert {entry["dtype"] for entry in header.values()} == {"BF16"}
        found |= {name: entry["shape"] for name, entry in header.items()}
    return found, files


def test_made_up_words_are_many_and_the_same_each_time():
    words = set(" ".join(make_model.made_up_text(5000, 0)).lower().replace(".", "").split())
    assert len(words) >= 5000
    first = list(itertools.islice(make_model.made_up_text(5000, 0), 20))
    assert first == list(itertools.islice(make_model.made_up_text(5000, 0), 20))
    assert first != list(itertools.islice(make_model.made_up_text(5000, 1), 20))


def test_another_model_is_not_overwritten(tmp_path):
    """Needs no engine: what is there already is never made."""
    (tmp_path / "cfac-model-ready").touch()
    assert make(sys.executable, tmp_path) == ""
    said = make(sys.executable, tmp_path, "--kind", "moe", expect=1)
    assert "holds another model: the default tiny model" in said
    settings = {"kind": "moe", "hidden": 256, "layers": 4, "seed": 0, "vocabulary": 512}
    (tmp_path / "cfac-model-ready").write_text(make_model.stamp_text(settings))
    assert make(sys.executable, tmp_path, "--kind", "moe") == ""
    assert '"kind": "moe"' in make(sys.executable, tmp_path, "--seed", "1", expect=1)


@pytest.mark.engine
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_what_it_says_and_the_same_each_time(python, tmp_path, kind):
    arguments = ["--kind", kind, *KINDS[kind]]
    one, two = tmp_path / "one", tmp_path / "two"
    make(python, one, *arguments)
    make(python, two, *arguments)
    assert hashes(one) == hashes(two)
    config = json.loads((one / "config.json").read_text())
    found, files = tensors(one)
    assert found["model.embed_tokens.weight"] == [config["vocab_size"], config["hidden_size"]]
    tied = "lm_head.weight" not in found
    assert tied == (kind == "qwen3") == config["tie_word_embeddings"]
    assert len(files) == (5 if kind == "large" else 1)
    normed = "model.layers.0.self_attn.q_norm.weight" in found
    assert normed == (kind in {"qwen3", "moe"})
    assert any(".experts." in name for name in found) == (kind == "moe")
    entries = len(json.loads((one / "tokenizer.json").read_text())["model"]["vocab"])
    assert config["vocab_size"] >= entries
    if kind == "qwen3":
        assert entries >= 32768
    if kind == "large":
        sizes = [path.stat().st_size for path in files]
        assert max(sizes) < 1.3 * min(sizes)


@pytest.mark.engine
def test_a_real_vocabulary_is_used_by_ordinary_text(python, tmp_path):
    make(python, tmp_path, "--vocab", "33000", "--hidden", "64", "--layers", "1")
    tokens = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(tokens) >= 33000
    assert sum(len(token) > 3 for token in tokens) > 20000


def test_large_has_the_weights_of_its_name():
    """About 1.8 GB of bf16, from the configuration alone."""
    hidden, layers = make_model.KINDS["large"]
    inner, heads, pairs = hidden * 43 // 16, hidden // 128, hidden // 512
    attention = 2 * hidden * hidden + 2 * hidden * 128 * pairs
    weights = layers * (attention + 3 * hidden * inner + 2 * hidden) + 2 * 320 * hidden
    assert heads * 128 == hidden
    assert 1.7e9 < 2 * weights < 1.9e9
