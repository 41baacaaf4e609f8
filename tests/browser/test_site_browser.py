"""The documentation's site in a browser: quiet, without network, readable on a phone and in the dark, searchable."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.command_lines import ROOT, environment

pytestmark = pytest.mark.browser
PHONE, DESK = {"width": 375, "height": 800}, {"width": 1280, "height": 900}
ANSWERS = {  # what somebody looks for, and the page that should be among the first five
    "how do I resume": "FAQ",
    "HF Trainer": "Hugging Face",
    "exit code 4": "Errors and exit codes",
    "gradient accumulation": "FAQ",
    "download tokenizer": "Building stores",
    "multi gpu": "FAQ",
    "first batch slow": "FAQ",
    "jupyter notebook": "Plans and mixtures",
    "delete data": "FAQ",
    "out of memory": "FAQ",
    "resume checkpoint": "First steps",
    "world size": "FAQ",
    "loss mask": "tokenstore.Store.loss_mask",
    "end of text": "Building stores",
    "skip steps": "Plans and mixtures",
    "append": "Building stores",
    "validation": "Evaluation",
    "exit code": "Errors and exit codes",
    "max_epochs": "plan.yaml",
    "cu_seqlens": "Packing",
    "memmap": "Coming from another loader",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "docs.build", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment(), "PYTHONWARNINGS": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a server on this machine serves the site: search fetches files, which browsers refuse for file: addresses."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


class Visit:
    """A page in a browser, with everything it printed or requested."""

    def __init__(self, browser: Any, address: str, size: dict[str, int], scheme: str):
        self.address = address
        self.context = browser.new_context(viewport=size, color_scheme=scheme)
        self.page = self.context.new_page()
        self.noise: list[str] = []
        self.page.on("console", lambda message: self.noise.append(f"{self.page.url}: {message.text}"))
        self.page.on("pageerror", lambda error: self.noise.append(f"{self.page.url}: {error}"))
        self.page.on("request", self._note_network)

    def _note_network(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:")):
            self.noise.append(f"network: {request.url}")


@pytest.fixture(params=[(PHONE, "dark"), (DESK, "light")], ids=["phone, dark", "desk, light"])
def visit(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Visit]:
    size, scheme = request.param
    visit = Visit(browser, address, size, scheme)
    yield visit
    visit.context.close()
    assert visit.noise == []


def test_every_page_fits_and_is_quiet(site: Path, visit: Visit) -> None:
    """No page is wider than the screen, writes to the console, or asks for anything outside the site."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    wide = []
    for page in pages:
        visit.page.goto(visit.address + page.relative_to(site).as_posix())
        if visit.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append(page.name)
    assert wide == []


def test_search_finds_the_page(visit: Visit) -> None:
    """Typical questions: the page with the answer is among the first five."""
    for question, answer in ANSWERS.items():
        visit.page.goto(f"{visit.address}search.html?q={question.replace(' ', '+')}")
        visit.page.get_by_text("Search finished").wait_for()
        found = visit.page.locator("#search-results li").all_inner_texts()[:5]
        assert any(text.startswith(answer) for text in found), (question, found)


def test_keyboard_reaches_the_content(visit: Visit) -> None:
    """The first press of Tab offers a way past the navigation."""
    visit.page.goto(visit.address)
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent").strip() == "Skip to content"
