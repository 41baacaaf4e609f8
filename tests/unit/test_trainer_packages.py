"""The packages of trainers: imported by their own adapter only, and said by name where they are missing."""

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
    """The error says what to install."""
    package, text = ADAPTERS[adapter]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"tokenstore.trainers.{adapter}", raising=False)
    with pytest.raises(ImportError, match=f"expected the package, found none; {text}"):
        import_module(f"tokenstore.trainers.{adapter}")


def test_loaders_import_no_trainer() -> None:
    """Who uses none of them needs none of them, and waits for none of them."""
    code = (
        "import sys, tokenstore.torch_data, tokenstore.trainers; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"lightning", "transformers", "accelerate", "torchdata", "grain"} & set(found)
