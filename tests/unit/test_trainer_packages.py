"""Packages of trainers are imported only by their adapter, and a missing one is named."""

import subprocess
import sys
from importlib import import_module

import pytest

ADAPTERS = {  # the module that is missing, and the extra that brings it
    "lightning": ("lightning.pytorch", "lightning"),
    "huggingface": ("transformers", "huggingface"),
    "torchdata": ("torchdata.nodes", "torchdata"),
    "grain": ("grain.sources", "grain"),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_missing_package_is_named(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    package, extra = ADAPTERS[adapter]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"tokenstore.trainers.{adapter}", raising=False)
    with pytest.raises(ImportError, match=rf"is not installed; run: pip install 'tokenstore\[{extra}\]'"):
        import_module(f"tokenstore.trainers.{adapter}")


def test_loaders_import_no_trainer() -> None:
    """Programs without a trainer neither need nor import one."""
    code = (
        "import sys, tokenstore.torch_data, tokenstore.trainers; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"lightning", "transformers", "accelerate", "torchdata", "grain"} & set(found)
