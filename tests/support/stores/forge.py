"""Stores made wrong on purpose: a manifest's digest and checksum by FMT-5 (a plain twin), files changed without updating it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from tokenstore import Plan


def canonical(value: Any) -> str:
    """The canonical JSON of FMT-5, NaN and all."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def sha256(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest_of(body: dict) -> str:
    """The digest of a manifest's fields (FMT-5)."""
    return sha256(
        {
            "dtype": body["dtype"],
            "vocab_size": body["vocab_size"],
            "tokenizer": [body["tokenizer"]["kind"], body["tokenizer"]["sha256"]],
            "shards": [[shard["num_tokens"], shard["checksum"]] for shard in body["shards"]],
            "boundaries": body["files"]["boundaries.bin"]["checksum"],
        }
    )


def seal(body: dict, digest: str | None = None) -> bytes:
    """Bytes of a manifest.json whose digest (where one can be made, or the one given) and checksum fit its fields."""
    body = {key: value for key, value in body.items() if key != "checksum"}
    try:
        body["digest"] = digest or digest_of(body)
    except (KeyError, TypeError, AttributeError, IndexError):
        body["digest"] = "0" * 64
    return json.dumps({**body, "checksum": sha256(body)}, sort_keys=True, indent=1).encode() + b"\n"


def replace(path: Path, data: bytes) -> None:
    """Put a new file in the place of a read-only one; who mapped the old one keeps that."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def overwrite(path: Path, data: bytes) -> None:
    """Change the bytes of a file in place: who mapped it sees them change."""
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.write(data)


def forge(store: Path, edit: Callable[[dict], Any]) -> Path:
    """Edit a store's manifest so that its checksum and digest fit again."""
    manifest = store / "manifest.json"
    body = json.loads(manifest.read_bytes())
    edit(body)
    replace(manifest, seal(body))
    return store


def list_file(store: Path, name: str) -> None:
    """Name a file of the folder in the manifest, with its size and checksum."""
    data = (store / name).read_bytes()
    entry = {"num_bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
    forge(store, lambda body: body["files"].update({name: entry}))


def list_tokenizer(store: Path, kind: str = "huggingface", name: str = "tokenizer.json") -> None:
    """Make a file of the folder the store's tokenizer, with its size, checksum and sha256."""
    data = (store / name).read_bytes()
    entry = {"num_bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
    digest = hashlib.sha256(data).hexdigest()

    def edit(body: dict) -> None:
        body["files"][name] = entry
        body["tokenizer"].update(kind=kind, file=name, sha256=digest)

    forge(store, edit)


def flip(data: bytes, bit: int) -> bytes:
    """`data` with one bit turned over."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def unpinned(plan: Plan) -> Plan:
    """The plan, whose stores now take any file of the right size for the one they opened: its kernels meet the damage."""
    for store in plan.stores.values():
        pin = store._pin

        def accept(number: int, pin: Any = pin) -> None:
            pin._known[number] = pin._look_at([number])[0]

        pin.check_content = accept
    return plan
