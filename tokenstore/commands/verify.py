"""`tokenstore verify`, in a clone `python -m tools.verify_store`."""

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from tokenstore.commands.progress import meter
from tokenstore.errors import CorruptionError
from tokenstore.store import open_store
from tokenstore.store import verify as verify_store


def verify(store: Path, /, *, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False) -> int:
    """Check everything in a store: sizes, checksums, boundaries, ids and document ends. Exit code 4 on any finding.

    **Examples:**

    ```text
    tokenstore verify stores/web
    ```

    Parameters
    ----------
    store
        The store's directory.
    as_json
        Print the findings as one JSON object.
    """
    with contextlib.suppress(CorruptionError):  # damage is a finding; a path that holds no store is a mistake
        open_store(store, check="lazy")
    done = 0
    total = sum(file.stat().st_size for file in store.iterdir() if file.is_file()) if store.is_dir() else 0
    with meter("verifying", quiet=as_json) as shown:

        def progress(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            shown.show(done, total, (done, "B"))

        findings = verify_store(store, progress)
    if as_json:
        sys.stdout.write(json.dumps({"path": str(store), "findings": [asdict(finding) for finding in findings]}) + "\n")
    else:
        console = Console(highlight=False, soft_wrap=True, markup=False)
        for finding in findings:
            console.print(str(finding))
        console.print(f"{store}: " + (f"{len(findings)} findings" if findings else f"sound, {total:,} bytes checked"))
    return 4 if findings else 0
