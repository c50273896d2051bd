"""The GPU bindings on real vLLM's source, of which the CPU build has all files.

There is no GPU here: the worker's method runs with doubles of CUDA's calls, up to where it
would need the device itself.
"""

import ast
import os
import subprocess

import pytest
from real_engine import ROOT

SPECS = ROOT / "specs" / "vllm"
#: Runs the patched Worker.init_device of rank 1 until it asks for the process group.
INIT = """
import os, sys, types
import torch
from vllm import _cfac
said = []
_cfac.publish = lambda name, *a, **k: said.append(name)
from vllm.v1.worker import gpu_worker
gpu_worker._cfac.publish = _cfac.publish
torch.accelerator.device_count = lambda: 2
torch.accelerator.set_device_index = lambda device: said.append(str(device))
class Stop(Exception): pass
def stop(*_, **__):
    raise Stop
class Platform:
    logical_device_id_to_visible_device_id = staticmethod(lambda rank: rank)
    check_if_supports_dtype = stop
gpu_worker.current_platform = Platform
none = types.SimpleNamespace
config = none(distributed_executor_backend="mp", data_parallel_backend="mp", nnodes_within_dp=1,
              data_parallel_rank_local=0, data_parallel_index=0, pipeline_parallel_size=1,
              prefill_context_parallel_size=1, tensor_parallel_size=2,
              assigned_physical_gpu_ids=None)
worker = none(device_config=none(device_type="cuda"), parallel_config=config, local_rank=1,
              model_config=none(dtype=None))
init = gpu_worker.Worker.init_device
try:
    getattr(init, "__wrapped__", init)(worker)
except Stop:
    print(",".join(said))
"""


@pytest.mark.parametrize("name", ["fast-start", "prespawn"])
def test_the_device_state_follows_the_context_on_a_double_of_cuda(engine, patched, name):
    copy = patched(SPECS / f"{name}.yaml")
    file = copy.package / "vllm" / "v1" / "worker" / "gpu_worker.py"
    lines = file.read_text().splitlines()
    ast.parse(file.read_text())
    (place,) = [n for n, line in enumerate(lines) if "worker.DeviceReady:publish" in line]
    assert lines[place - 1].strip() == "torch.accelerator.set_device_index(self.device)"
    done = subprocess.run(
        [engine / "bin" / "python", "-c", INIT],
        env=os.environ | {"PYTHONPATH": f"{copy.package}:{ROOT}", "CFAC_RUN": "off"},
        capture_output=True,
        text=True,
        cwd="/",
        timeout=300,
    )
    assert done.stdout.splitlines()[-1:] == ["cuda:1,worker.DeviceReady"], done.stderr
