"""Data sets and tokenizers by name, from a local stand-in of the Hugging Face hub."""

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.processes.command_lines import MAIN, ROOT, WAIT_SECONDS, environment
from tests.support.stores.building import documents

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The three requests that a download makes: the commit of a revision, its files, and a file."""

    files: dict[str, dict[str, bytes]]  # by kind and repository

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        for name, files in self.files.items():
            kind, _, repository = name.partition("/")
            api, resolve = (
                f"/api/{kind}/{repository}",
                f"/{'datasets/' if kind == 'datasets' else ''}{repository}/resolve/",
            )
            if path in (f"{api}/revision/main", f"{api}/revision/{SHA}", api):
                return self._send({"id": repository, "sha": SHA, "siblings": [{"rfilename": each} for each in files]})
            if path == f"{api}/tree/{SHA}":
                tree = [
                    {"type": "file", "path": p, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                    for p, d in files.items()
                ]
                return self._send(tree)
            if path.startswith(resolve) and (file := path.removeprefix(resolve).partition("/")[2]) in files:
                return self._reply(
                    200, files[file], {"ETag": f'"{hashlib.sha1(files[file]).hexdigest()}"', "X-Repo-Commit": SHA}
                )
        return self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send(self, value: object) -> None:
        self._reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _reply(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tokenizer_file: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a command for which a small hub is the hub."""
    lines = b'{"text": "one"}\n{"text": "two"}\n'
    Hub.files = {
        "datasets/me/data": {
            "README.md": b"no",
            "train/a.jsonl": lines,
            "test/b.jsonl": b'{"text": "three"}\n',
            "x.json": b"{}",
        },
        "models/me/model": {"tokenizer.json": tokenizer_file.read_bytes(), "weights.bin": b"must not be fetched"},
        "models/me/empty": {"README.md": b""},
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }
    server.shutdown()
    server.server_close()


def build(hub: dict[str, str], *arguments: object) -> subprocess.CompletedProcess:
    env = {**environment(), "PYTHONWARNINGS": "default", **hub}
    return subprocess.run(
        [*MAIN, "build", *map(str, arguments)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )  # fmt: skip


def test_a_data_set_and_a_tokenizer_are_fetched_by_name(hub: dict[str, str], tmp_path: Path) -> None:
    """Only the files that are needed are fetched; the build is that of local files. A second one needs no network."""
    done = build(hub, "hf://datasets/me/data/train/*.jsonl", "-o", tmp_path / "a", "--tokenizer", "hf://me/model")
    assert done.returncode == 0, done.stderr
    assert len(documents(tmp_path / "a")) == 2
    fetched = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert "weights.bin" not in fetched
    assert "b.jsonl" not in fetched
    done = build(hub, f"hf://datasets/me/data@{SHA}", "-o", tmp_path / "b", "--tokenizer", "bytes")
    assert done.returncode == 0, done.stderr
    assert len(documents(tmp_path / "b")) == 3
    offline = {**hub, "HF_HUB_OFFLINE": "1"}
    done = build(offline, "hf://datasets/me/data/train", "-o", tmp_path / "c", "--tokenizer", "hf://me/model")
    assert done.returncode == 0, done.stderr


@pytest.mark.deep
def test_what_cannot_be_fetched_is_a_clear_error(hub: dict[str, str], tmp_path: Path) -> None:
    away = {**hub, "HF_ENDPOINT": "http://127.0.0.1:9"}
    for environ, arguments, message in (
        (away, ("hf://datasets/me/other", "--tokenizer", "bytes"), "hub: hf://datasets/me/other cannot be fetched"),
        (hub, ("hf://datasets/me/none", "--tokenizer", "bytes"), "hf download me/none --repo-type dataset"),
        (hub, ("hf://datasets/me", "--tokenizer", "bytes"), "expected hf://datasets/OWNER/NAME"),
        (
            hub,
            ("README.md", "--tokenizer", "hf://me/empty"),
            "has none of tokenizer.json, tekken.json, tokenizer.model",
        ),
        (hub, ("README.md", "--tokenizer", "hf://me"), "expected hf://OWNER/NAME"),
    ):
        done = build(environ, *arguments, "-o", tmp_path / "s")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert message in done.stderr
    assert not (tmp_path / "s").exists()
    assert os.listdir(tmp_path) in ([], ["cache"])
