"""The command line's frame."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from cfac import __version__
from cfac.compiler.cli import COMMANDS, cli


def invoke(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(args))
    return result.exit_code, result.output


def test_help_lists_all_commands() -> None:
    code, text = invoke("--help")
    assert code == 0
    assert all(f"  {name} " in text for name in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from cfac.compiler.cli import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "heavy = {'pydantic', 'networkx', 'yaml', 'jinja2', 'rich', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_version() -> None:
    assert invoke("--version") == (0, f"cfac {__version__}\n")


def test_unknown_command_is_a_usage_error() -> None:
    code, text = invoke("explian")
    assert code == 2 and "explain" in text


@pytest.mark.parametrize("code", ["CF201", "cf201"])
def test_explain(code: str) -> None:
    status, text = invoke("explain", code)
    assert status == 0 and text.startswith("# CF201: ") and "## Good" in text


def test_explain_unknown_code() -> None:
    status, text = invoke("explain", "CF999")
    assert status == 2 and "CF999" in text


def test_explain_lists_all() -> None:
    status, text = invoke("explain")
    assert status == 0 and "CF104  a key is given twice\n" in text


def test_schema() -> None:
    status, text = invoke("schema")
    assert status == 0 and json.loads(text)["$id"].endswith("cfac-v1.schema.json")
