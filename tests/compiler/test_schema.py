"""The published JSON Schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cfac.compiler.schema import json_schema

ROOT = Path(__file__).parents[2]
SHIPPED = sorted([*(ROOT / "specs").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")])
CASES = ROOT / "tests" / "cases" / "spec"


def validate(data: Any) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(data)


def test_published_file_is_up_to_date() -> None:
    published = (ROOT / "specs" / "cfac-v1.schema.json").read_text("utf-8")
    assert published == json.dumps(json_schema(), indent=2) + "\n", (
        "run: cfac schema > specs/cfac-v1.schema.json"
    )


def test_schema_is_valid_and_described() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for owner in (schema, *schema["$defs"].values()):
        for name, prop in owner.get("properties", {}).items():
            assert prop.get("description"), name


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT)))
def test_shipped_specs_validate(path: Path) -> None:
    data = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)
    if not isinstance(data, dict) or data.get("kind") != "StartupGraph":
        pytest.skip("not a spec")
    from cfac.compiler.diagnostics import Diagnostics
    from cfac.compiler.yamlpos import parse, to_data

    root = parse(path.read_text("utf-8"), str(path), Diagnostics())
    assert root is not None
    validate(to_data(root))


@pytest.mark.parametrize("case", ["schema-mistakes", "eight-mistakes"])
def test_mistakes_do_not_validate(case: str) -> None:
    data = yaml.safe_load((CASES / case / "spec.yaml").read_text("utf-8"))
    with pytest.raises(jsonschema.ValidationError):
        validate(data)
