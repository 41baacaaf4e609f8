"""Checks to run before a commit: style, types, and tests of every promise. Under a minute on two cores.

    python -m tools.check

Style comes first because it takes less than a second. Types and tests then run side by side, and the first failure ends
them all. `.ci/run` runs everything, in a fresh environment.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Whole modules: collecting all tests for a marker would take longer than running these.
# tests/unit/test_check.py asserts that they name every promise.
FAST_TESTS = [
    "tests/golden",
    "tests/property/test_order.py",
    "tests/property/test_packed_plan.py",
    "tests/property/test_plan.py",
    "tests/hostile/test_hostile_manifest.py",
    "tests/process/test_append_cli.py",
    "tests/unit/test_build_documents.py",
    "tests/unit/test_build_resume.py",
    "tests/unit/test_layers.py",
    "tests/unit/test_loader.py",
    "tests/unit/test_loader_position.py",
    "tests/unit/test_ranks.py",
    "tests/unit/test_run_identity.py",
    "tests/unit/test_store_life.py",
    "tests/unit/test_store_maps.py",
    "tests/unit/test_store_reading.py",
    "tests/unit/test_store_verify.py",
    "tests/unit/test_virtual.py",
]


def run_together(commands: Mapping[str, Sequence[str]]) -> bool:
    """Run commands side by side and print the seconds of each; the first that fails stops the others.

    Args:
        commands: name -> arguments of a module that this interpreter runs, as after `python -m`. Their output is shown only
            if they fail.

    Returns: whether all passed.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        running = {name: _start(command, Path(folder) / name) for name, command in commands.items()}
        try:
            while running:
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    code = running.pop(name).returncode
                    if code != 0:
                        sys.stdout.write((Path(folder) / name).read_text())
                    outcome = "passed" if code == 0 else f"failed with exit code {code}"
                    sys.stdout.write(f"{time.monotonic() - start:6.1f} s  {name} {outcome}\n")
                    sys.stdout.flush()
                    if code != 0:
                        return False
                time.sleep(0.02)
        finally:
            for process in running.values():
                process.terminate()
                process.wait()
    return True


def _start(command: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    with open(output, "wb") as file:
        return subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)


def main() -> int:
    """Run all stages. Returns the exit code of the process: 1 after a failure."""
    missing = [name for name in ("ruff", "mypy", "pytest", "xdist") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"not installed: {', '.join(missing)}; run `pip install -c constraints.txt -e '.[test]'`\n")
        return 1
    start = time.monotonic()
    passed = run_together(
        {"style": ["ruff", "check", "."], "format": ["ruff", "format", "--check", "."]}
    ) and run_together({"types": ["mypy"], "tests": ["pytest", "-q", "--maxfail=1", *FAST_TESTS]})
    sys.stdout.write(f"{time.monotonic() - start:6.1f} s  {'all checks passed' if passed else 'a check failed'}\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
