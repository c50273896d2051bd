"""What the loader of ``--load-format cfac`` takes for granted, in the sources of several vLLMs.

No engine is imported: 0.32.0 is run by test_load_format.py, and 0.13.0 can be by its script.
"""

from __future__ import annotations

import ast
import sys

import pytest
from real_engine import ROOT

sys.path.insert(0, str(ROOT / "examples" / "vllm"))

from sources import WHEELS, fetch

from cfac.runtime.loading import vllm_loader
from cfac.runtime.vllm_plugin import _LOADERS

VERSIONS = [version for package, version in WHEELS if package == "vllm"]


def parsed(version: str, module: str) -> dict[str, ast.AST]:
    """The top-level definitions of a module of ``vllm.model_executor.model_loader``."""
    folder = fetch("vllm", version).joinpath(*_LOADERS.split("."))
    found: dict[str, ast.AST] = {}
    for node in ast.parse((folder / f"{module}.py").read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def method(version: str, name: str) -> ast.FunctionDef:
    loader = parsed(version, "default_loader")["DefaultModelLoader"]
    (found,) = (n for n in ast.walk(loader) if isinstance(n, ast.FunctionDef) and n.name == name)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_default_loader_reads_by_the_one_name_that_is_bound_anew(version):
    body = method(version, "_get_weights_iterator")
    assert body.decorator_list == [], "its code would be another function's"
    assert [argument.arg for argument in body.args.args] == ["self", "source"]
    (call,) = (
        node
        for node in ast.walk(body)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == vllm_loader._ITERATOR
    )
    given = [ast.unparse(argument) for argument in call.args]
    assert given == [
        "hf_weights_files",
        "self.load_config.use_tqdm_on_load",
        "self.load_config.safetensors_load_strategy",
    ]
    named = {keyword.arg for keyword in call.keywords}
    assert named <= {
        "local_expert_ids",
        "safetensors_prefetch_num_threads",
        "safetensors_prefetch_block_size",
    }
    assert "super()" not in ast.unparse(body)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_helpers_are_there(version):
    helpers = parsed(version, "weight_utils")
    assert {vllm_loader._ITERATOR, "_BAR_FORMAT", "enable_tqdm"} <= helpers.keys()
    sorts = "sorted(hf_weights_files" in ast.unparse(helpers[vllm_loader._ITERATOR])
    assert sorts == ("_natural_sort_key" in helpers), "files come in another order than stock's"
    skips = "should_skip_weight" in ast.unparse(helpers[vllm_loader._ITERATOR])
    if skips:
        assert "should_skip_weight" in parsed(version, "ep_weight_filter")
    assert "register_model_loader" in parsed(version, "__init__")


@pytest.mark.parametrize("version", VERSIONS)
def test_plugins_are_loaded_where_models_are(version):
    folder = fetch("vllm", version) / "vllm"
    assert "vllm.general_plugins" in (folder / "plugins" / "__init__.py").read_text("utf-8")
    for place in ("v1/worker/worker_base.py", "v1/engine/core.py"):
        assert "load_general_plugins()" in (folder / place).read_text("utf-8")
