"""The ablation's specs: each has one construct more, and all of them check."""

import ablation
import yaml

from cfac.compiler import api


def test_each_spec_is_one_construct_richer_and_checks(tmp_path):
    specs = ablation.write(tmp_path)
    assert list(specs) == ["fork", "policy", "defer", "idle", "remember"]
    for path in specs.values():
        spec, diagnostics = api.load(path)
        assert spec is not None
        assert not [d.message for d in diagnostics if d.severity == "error"]
        found = api.check(spec).diagnostics
        assert not [d.message for d in found if d.severity == "error"]
    texts = {label: yaml.safe_load(path.read_text()) for label, path in specs.items()}
    shipped = yaml.safe_load((ablation.SPECS / "fast-start.yaml").read_text())
    assert texts["remember"] == shipped | {"name": "vllm-remember"}
    assert "remember" in texts["remember"] and "remember" not in texts["idle"]
    assert "frontend.IdleDone" in texts["idle"]["bind"]
    assert "frontend.IdleDone" not in texts["defer"]["bind"]
    assert "defer" in texts["defer"] and "defer" not in texts["policy"]
    assert "policy" in texts["policy"]["components"]["frontend"]
    assert "policy" not in texts["fork"]["components"]["frontend"]
    assert texts["fork"]["components"]["worker"]["process"]["strategy"]
