"""A package of a trainer that is missing is named. That only its adapter imports it is tested in test_extras.py."""

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
