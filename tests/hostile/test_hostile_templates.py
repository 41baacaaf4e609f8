"""Untrusted chat templates: rendered only in jinja2's sandbox, and refused with a ConfigError if they are invalid."""

from pathlib import Path

import pytest

from tests.support.stores.hostile_stores import make_fifo
from tokenstore.builder.documents.templates import find_template, load_template
from tokenstore.errors import ConfigError

pytestmark = pytest.mark.timeout(60)  # a hang is a failure long before the suite's own limit

NO_TEMPLATES = {
    "parentheses": "{{ " + "(" * 20_000,
    "lists": "{{ " + "[" * 3_000 + "]" * 3_000 + " }}",
    "ifs": "{% if x %}" * 5_000,
    "digits": "{{ 1" + "0" * 5_000 + " }}",
}


@pytest.mark.parametrize("name", NO_TEMPLATES)
def test_a_template_nested_too_deep_is_refused(name: str) -> None:
    """Loading it is a ConfigError, not a RecursionError."""
    with pytest.raises(ConfigError, match="not valid Jinja"):
        load_template(NO_TEMPLATES[name], {})


@pytest.mark.parametrize("text", ["''.__class__.__mro__", "messages.append(1)", "messages[0].update(role='x')"])
def test_a_template_cannot_leave_its_sandbox(text: str) -> None:
    """It cannot access Python objects or change its arguments."""
    messages = [{"role": "user", "content": "x"}]
    template = load_template(f"{{{{ {text} }}}}", {})
    with pytest.raises(ValueError, match="unsafe"):
        template.render(messages, None)
    assert messages == [{"role": "user", "content": "x"}]


def test_a_template_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    """A pipe, a device, or a file that is too large in place of a template."""
    make_fifo(tmp_path / "pipe.jinja")
    with pytest.raises(ConfigError, match="a pipe instead of a regular file"):
        find_template(str(tmp_path / "pipe.jinja"), None)
    with pytest.raises(ConfigError, match="a device instead of a regular file"):
        find_template("/dev/zero", None)
    (tmp_path / "large.jinja").touch()
    with open(tmp_path / "large.jinja", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="at most 16,777,216 are allowed"):
        find_template(str(tmp_path / "large.jinja"), None)
