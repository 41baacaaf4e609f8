"""Untrusted plans: any plan.yaml is read within limits, or refused in one sentence with file and field."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stores.hostile_stores import make_fifo
from tokenstore import PlanConfig
from tokenstore.errors import ConfigError
from tokenstore.outside import MAX_PLAN_BYTES

pytestmark = pytest.mark.timeout(30)  # a hang is a failure long before the suite's own limit

SOUND = "sequence_length: 8\nglobal_batch_size: 4\nsources: {web: {path: x}}\n"


def aliases(levels: int) -> str:
    """Each list contains the previous one twice."""
    rows = [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, levels)]
    return "\n".join(["a0: &a0 [1, 1]", *rows]) + "\n"


def merges(levels: int) -> str:
    """Each mapping merges the previous one twice."""
    rows = [f"b{i}: &b{i} {{<<: [*b{i - 1}, *b{i - 1}]}}" for i in range(1, levels)]
    return "\n".join(["b0: &b0 {x: 1}", *rows]) + "\n"


REFUSED = {
    "alias bomb": (SOUND + aliases(40), "at most 50,000 values"),
    "merge bomb": (SOUND + merges(40), "at most 50,000 values"),
    "alias of itself": (SOUND + "a: &a [*a]", "does not contain itself"),
    "many values": (SOUND + "a: [" + "1," * 60_000 + "]", "at most 50,000 values"),
    "nested lists": (
        SOUND + "a: " + "[" * 100_000,
        "as YAML: expected at most 50 levels, found more at line 4, column",
    ),
    "nested objects": ("{a: " * 100_000, "at most 50 levels"),
    "nested by lines": ("- " * 100_000, "at most 50 levels"),
    "a field called self": (SOUND + "self: 1", "self: unknown field"),
    "a weight of many digits": (
        SOUND.replace("path: x", "path: x, weight: '0." + "9" * 500_000 + "'"),
        "sources.web.weight: expected at most 100 digits",
    ),
    "a weight with a large exponent": (
        SOUND.replace("path: x", "path: x, weight: 1e999999999"),
        "sources.web.weight: expected at most 100 digits",
    ),
    "digits": (SOUND + "seed: 1" + "0" * 5000, "a number of at most 100 digits, found 5,001"),
    "hexadecimal": (SOUND + "seed: 0x1" + "0" * 5000, "a number of at most 100 digits"),
    "base 60": (SOUND + "seed: 1" + ":59" * 5000, "a number of at most 100 digits"),
    "a tagged number": (SOUND + "seed: !!int '1" + "0" * 5000 + "'", "a number of at most 100 digits"),
    "a tagged bool": (SOUND + "shuffle: !!bool x", "cannot be read as YAML"),
    "a tagged time": (SOUND + "seed: !!timestamp x", "cannot be read as YAML"),
    "no day": (SOUND + "seed: 2024-13-45", "cannot be read as YAML"),
    "python": (SOUND + "seed: !!python/object/apply:os.system ['true']", "cannot be read as YAML"),
    "keys twice": (SOUND + "{" + "k: 1, " * 20_000 + "}", "expected"),
    "seed": (SOUND + "seed: 1" + "0" * 60, "seed: expected at most"),
    "sequence_length": (SOUND.replace("h: 8", f"h: {1 << 48}"), "sequence_length: expected at most 16777216"),
    "global_batch_size": (SOUND.replace("e: 4", f"e: {1 << 48}"), "global_batch_size: expected at most 16777216"),
    "num_steps": (SOUND + f"num_steps: {1 << 62}", "num_steps"),
    "weight": (SOUND.replace("path: x", "path: x, weight: .inf"), "weight: expected a finite number"),
    "too large": (" " * (MAX_PLAN_BYTES + 1), "at most 1,048,576 are allowed"),
    "bytes": ("\x00" * 100, "cannot be read as YAML"),
    "a list": ("[]", "found list"),
    "nothing": ("", "found NoneType"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_plan_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    """A ConfigError of bounded length that names the file, raised quickly."""
    text, message = REFUSED[name]
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        PlanConfig.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(path))


def test_ordinary_aliases_and_merges_are_read(tmp_path: Path) -> None:
    """They are useful, for example as a base that several sources share."""
    path = tmp_path / "plan.yaml"
    path.write_text(
        "sequence_length: 8\nglobal_batch_size: 4\n"
        "sources:\n  web: &base {path: x, max_epochs: 3}\n  code: {<<: *base, path: y}\n"
    )
    config = PlanConfig.load(path)
    assert {name: source.max_epochs for name, source in config.sources.items()} == {"web": 3, "code": 3}


def test_only_the_first_of_many_errors_are_listed(tmp_path: Path) -> None:
    """Each is compared with the known fields and with all other errors: 20,000 took more than a minute."""
    (tmp_path / "plan.yaml").write_text(SOUND + "".join(f"a{i}: 1\n" for i in range(20_000)))
    with pytest.raises(ConfigError, match=r"a0: unknown field.*; and 19,980 more mistakes") as caught:
        PlanConfig.load(tmp_path / "plan.yaml")
    assert len(str(caught.value)) < 5000


def test_the_home_of_an_unknown_user_is_an_ordinary_path(tmp_path: Path) -> None:
    """`~name` of an unknown user is not expanded, as in a shell."""
    (tmp_path / "plan.yaml").write_text(SOUND.replace("path: x", "path: ~nobody-has-this-name/x"))
    source = PlanConfig.load(tmp_path / "plan.yaml").sources["web"]
    assert source.path == str(tmp_path / "~nobody-has-this-name/x")


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["positive", "negative"])
def test_huge_numbers_from_python_are_refused(value: int) -> None:
    """The message names the field; Python itself refuses to print such a number."""
    for field in ("seed", "sequence_length", "num_steps"):
        fields = {"sequence_length": 8, "global_batch_size": 4, "sources": {"a": {"path": "x"}}, field: value}
        with pytest.raises(ConfigError, match=field):
            PlanConfig(**fields)


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device"])
def test_a_plan_that_is_not_a_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A pipe, a folder, or a link to a device in place of plan.yaml does not block."""
    path = tmp_path / "plan.yaml"
    {"a pipe": make_fifo, "a folder": Path.mkdir, "a device": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    with pytest.raises(ConfigError, match=f"{kind} instead of a regular file"):
        PlanConfig.load(path)


def test_a_plan_through_a_pipe_is_refused_by_the_command(tmp_path: Path) -> None:
    """`tokenstore plan /dev/stdin` or `<(...)`: one sentence, exit code 2."""
    command = [sys.executable, "-m", "tools.inspect_plan", "/dev/stdin"]
    done = subprocess.run(command, input=SOUND, capture_output=True, text=True, timeout=240, env=dict(os.environ))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot read /dev/stdin: a pipe instead of a regular file" in done.stderr
