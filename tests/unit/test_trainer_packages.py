"""Packages of trainers are imported only by their adapter, and a missing one is named."""

import subprocess
import sys
from importlib import import_module

import pytest

ADAPTERS = {
    "lightning": ("lightning.pytorch", "pip install 'lightning"),
    "huggingface": ("transformers", "pip install 'transformers>=5' accelerate"),
    "torchdata": ("torchdata.nodes", "pip install 'torchdata"),
    "grain": ("grain.sources", "pip install 'grain"),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_missing_package_is_named(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    package, text = ADAPTERS[adapter]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"tokenstore.trainers.{adapter}", raising=False)
    with pytest.raises(ImportError, match=f"is not installed; {text}"):
        import_module(f"tokenstore.trainers.{adapter}")


def test_loaders_import_no_trainer() -> None:
    """Programs without a trainer neither need nor import one."""
    code = (
        "import sys, tokenstore.torch_data, tokenstore.trainers; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"lightning", "transformers", "accelerate", "torchdata", "grain"} & set(found)
