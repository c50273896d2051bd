import subprocess
import sys


def test_the_runtime_imports_only_the_standard_library():
    """An engine's start path must not pay for, or depend on, other packages."""
    code = (
        "import sys\n"
        "import cfac.runtime, cfac.runtime.boot, cfac.runtime.channel, cfac.runtime.owner\n"
        "import cfac.runtime.executor, cfac.runtime.verify\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names - set(sys.stdlib_module_names) - {'cfac', '__main__'}))\n"
    )
    # -S keeps site-packages hooks out, so that only our own imports count
    path = "import sys; sys.path.insert(0, '.')\n"
    result = subprocess.run(
        [sys.executable, "-S", "-c", path + code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_the_start_path_stays_light():
    """Modules that cost much to import must not be loaded by what a patched engine imports."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import cfac.runtime.boot\n"
        "heavy = {'asyncio', 'subprocess', 'multiprocessing', 'tempfile', 'shutil', 'pathlib'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
