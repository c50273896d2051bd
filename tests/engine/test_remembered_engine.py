"""What the fast start remembers is what the engine's own packages compute."""

import json
import os
import subprocess

import pytest

from cfac.compiler import api

pytestmark = pytest.mark.engine

LOOK = """
import json, sys
from cfac.runtime.remember import Remembered

remembered = Remembered(json.loads(sys.argv[1]), "test")
remembered.open("frontend")
import importlib.metadata
own = importlib.metadata.packages_distributions.__wrapped__
import transformers.utils.import_utils as utils
import transformers.models as models

def ask():
    top = models.__path__[0]
    return utils.create_import_structure_from_path(top), importlib.metadata.packages_distributions()

looked_up = ask()
counts = remembered.counts
remembered.close("frontend", keep=True)
assert importlib.metadata.packages_distributions is own
computed = ask()
assert looked_up == computed
assert all(map(len, computed))
print(json.dumps(counts))
"""


def test_what_is_looked_up_equals_what_is_computed(engine, tmp_path, pytestconfig):
    spec, _ = api.load(pytestconfig.rootpath / "specs" / "vllm" / "fast-start.yaml")
    assert spec is not None
    entries = api.compile_plan(spec)["engine"]["remember"]
    assert len(entries["results"]) == 2
    environment = os.environ | {
        "CFAC_REMEMBER": str(tmp_path),
        "PYTHONPATH": str(pytestconfig.rootpath),
    }
    counts = []
    for _ in range(2):
        command = [engine / "bin" / "python", "-c", LOOK, json.dumps(entries)]
        ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        counts.append(json.loads(ran.stdout.splitlines()[-1]))
    assert counts[0]["new"] == counts[0]["used"] > 300
    assert counts[1] == {"used": counts[0]["used"], "new": 0}
