"""Early imports that a configuration decides on (``does: {import: ..., when: ...}``)."""

import pytest
import tiny

SPEC = (
    (tiny.SOURCE / "fast.yaml")
    .read_text()
    .replace("startup.yaml", "base.yaml")
    .replace(
        "      - Prepared: {aux: true, does: {import: [decimal]}}\n",
        "      - Prepared:\n"
        "          aux: true\n"
        "          does: {import: [tinyengine.several], when: {param: workers, above: 1}}\n",
    )
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A tiny engine with a module that says where it is imported."""

    def prepare(tree):
        (tree / "tinyengine" / "several.py").write_text(
            "import multiprocessing\n"
            "print('imported in', multiprocessing.current_process().name, flush=True)\n"
        )

    assert "tinyengine.several" in SPEC
    return tiny.patched_copy(tmp_path_factory.mktemp("engine") / "tree", SPEC, prepare)


@pytest.mark.parametrize("workers", [1, 2])
def test_they_come_where_the_command_line_says_so(engine, runs, workers):
    result = tiny.run(engine, runs, "--workers", str(workers))
    assert result.returncode == 0, result.stderr
    said = ["imported in TinyCore"] if workers > 1 else []
    assert result.stdout.splitlines() == [*said, "serving", "6"]
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert history.end("core", "Prepared") is not None
