"""An adoption that is killed leaves no store, and the token files as they were."""

import subprocess
import sys
from pathlib import Path

from tests.support.foreign.adopting import adopt, documents_of
from tests.support.foreign.files import DOCUMENTS, megatron

KILLED = """
import os, sys
from tokenstore.foreign import AdoptOptions, adopt_store
adopt_store(AdoptOptions((sys.argv[1],), sys.argv[2], vocab_size=100), lambda done, total: os.kill(os.getpid(), 9))
"""


def test_a_killed_adoption_leaves_no_store_and_can_be_repeated(tmp_path: Path) -> None:
    """P8: the manifest is written last, in a work folder that the next run removes."""
    made = megatron(tmp_path / "x")
    data = made.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(made), str(tmp_path / "s")], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "s").exists()
    assert (tmp_path / "s.tokenstore" / "building").is_dir()
    assert documents_of(adopt(tmp_path / "s", made).path) == DOCUMENTS
    assert not (tmp_path / "s.tokenstore").exists()
    assert made.read_bytes() == data
