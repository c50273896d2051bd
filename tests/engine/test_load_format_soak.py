"""``--load-format cfac`` on real vLLM, the longer half: large models, LoRA, damaged files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from load_format import plugin_environment
from real_engine import ROOT, cfac

pytestmark = pytest.mark.soak
CFAC = "--load-format=cfac"
ADAPTER = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
folder, layers = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(1)
weights = {}
for n in range(layers):
    base = f"base_model.model.model.layers.{n}.self_attn.q_proj"
    weights[f"{base}.lora_A.weight"] = torch.randn(8, 256)
    weights[f"{base}.lora_B.weight"] = torch.randn(256, 8)
save_file(weights, folder / "adapter_model.safetensors")
config = {"peft_type": "LORA", "r": 8, "lora_alpha": 64, "target_modules": ["q_proj"],
          "bias": "none", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny"}
(folder / "adapter_config.json").write_text(json.dumps(config))
"""

#: A checkpoint with int8 weights and a scale per row: types mixed in a file.
QUANTISE = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
folder = Path(sys.argv[1])
path = folder / "model.safetensors"
tensors = {}
for name, weight in load_file(path).items():
    if not name.endswith("_proj.weight"):
        tensors[name] = weight
        continue
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    tensors[name] = (weight.float() / scale).round().clamp(-128, 127).to(torch.int8)
    tensors[f"{name}_scale"] = scale.to(torch.float32)
path.unlink()
save_file(tensors, path)
kind = {"num_bits": 8, "type": "int", "symmetric": True}
config = json.loads((folder / "config.json").read_text())
config["quantization_config"] = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
    "quantization_status": "compressed",
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": kind | {"strategy": "channel", "dynamic": False},
        "input_activations": kind | {"strategy": "token", "dynamic": True},
    }},
}
(folder / "config.json").write_text(json.dumps(config))
"""


@pytest.fixture
def plugin(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return plugin_environment(folder)


def answers(server):
    server.wait_ready()
    found = [server.complete(), server.complete("One two three", 16)]
    log = server.log
    server.stop()
    assert server.process.returncode == 0
    return found, log


@pytest.fixture(scope="module")
def large(engine):
    """A model of 1.8 GB in 5 shards."""
    folder = ROOT / "build" / "models" / "large"
    script = ROOT / "examples" / "vllm" / "make_model.py"
    subprocess.run([engine / "bin" / "python", script, folder, "--kind", "large"], check=True)
    return folder


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_five_shards_answer_as_stock(serve, plugin, large, tensor_parallel):
    expected, _ = answers(serve(model=large, tensor_parallel=tensor_parallel))
    got, log = answers(
        serve(model=large, tensor_parallel=tensor_parallel, environment=plugin, arguments=[CFAC])
    )
    assert got == expected
    assert "cfac): 100% Completed | 5/5" in log and "vLLM's own reader" not in log


def test_an_adapter_on_top(serve, engine, plugin, tmp_path):
    """LoRA adapters are read by vLLM itself, the base model by cfac."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    subprocess.run([engine / "bin" / "python", "-c", ADAPTER, folder, "4"], check=True)
    options = ["--enable-lora", "--max-lora-rank=8", f"--lora-modules=extra={folder}"]
    found = []
    for extra in ({}, {"environment": plugin, "arguments": [CFAC]}):
        server = serve(**extra | {"arguments": [*options, *extra.get("arguments", [])]})
        server.wait_ready()
        base = server.complete()
        server.model = "extra"
        found.append([base, server.complete()])
        server.stop()
    assert found[0] == found[1]
    assert found[0][0] != found[0][1], "the adapter changes nothing: the test says nothing"


def test_a_quantised_checkpoint_answers_as_stock(serve, engine, plugin, model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "int8")
    subprocess.run([engine / "bin" / "python", "-c", QUANTISE, copy], check=True)
    expected, _ = answers(serve(model=copy))
    got, log = answers(serve(model=copy, environment=plugin, arguments=[CFAC]))
    assert got == expected
    assert "quantization=compressed-tensors" in log and "vLLM's own reader" not in log


def test_two_engines_at_once_share_one_copy_in_memory(serve, plugin, model, tmp_path):
    """Evicted while both serve: nothing is lost, and nothing of it is left."""
    folder = Path(f"/dev/shm/cfac-test-cache-{os.getpid()}")
    environment = plugin | {"CFAC_CACHE": str(folder)}
    try:
        cfac("cache", "add", str(model), env=environment)
        servers = [serve(environment=environment, arguments=[CFAC]) for _ in range(2)]
        for server in servers:
            server.wait_ready()
        assert "evicted" in cfac("cache", "evict", str(model), env=environment)
        first, second = [answers(server) for server in servers]
        assert first[0] == second[0] == answers(serve())[0]
        for _, log in (first, second):
            assert "cfac: 1 of 1 files are in memory" in log
        assert os.listdir(folder) == ["adding"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_damaged_file_ends_the_start_with_one_clear_error(serve, plugin, model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "damaged")
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    server = serve(model=copy, environment=plugin, arguments=[CFAC])
    with pytest.raises(RuntimeError, match="the server ended"):
        server.wait_ready()
    errors = {line.partition("HeaderError: ")[2] for line in server.log.splitlines()}
    (error,) = errors - {""}
    assert str(file) in error and "tensor" in error and "an unfinished download?" in error
    assert "vLLM's own reader" not in server.log


def test_another_format_for_the_same_files(serve, plugin, model, engine, tmp_path):
    """A checkpoint without safetensors files is read by vLLM, and answers the same."""
    copy = shutil.copytree(model, tmp_path / "pickled")
    (file,) = copy.glob("*.safetensors")
    code = (
        "import sys, torch; from safetensors.torch import load_file;"
        "torch.save(load_file(sys.argv[1]), sys.argv[2])"
    )
    subprocess.run(
        [engine / "bin" / "python", "-c", code, file, copy / "pytorch_model.bin"], check=True
    )
    file.unlink()
    expected, _ = answers(serve())
    got, _ = answers(serve(model=copy, environment=plugin, arguments=[CFAC]))
    assert got == expected
