"""`--executor ray`: a local Ray makes the bytes of one process, also if its actors are killed."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tokenstore.builder import BuildOptions, append_store, build_store, pipeline
from tokenstore.builder.executors import ray_actors
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BuildError, ConfigError, StoreBusyError


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records in many units; two of them kill the process that reads them first."""
    monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=3000))
    lines = [{"text": f"document {i} " * 5} for i in range(300)]
    for i in (20, 170):
        lines[i]["die"] = str(tmp_path / f"died-{i}")
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A local Ray for the test, which writes no token into the home directory."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def options_of(corpus: Path, output: Path, **options: Any) -> BuildOptions:
    """The options of a build of the corpus."""
    return BuildOptions((str(corpus),), output, "bytes", **options)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.deep
def test_actors_that_are_killed_are_replaced(tmp_path: Path, corpus: Path, ray: Any) -> None:
    """P8: the unit is made again by another actor; the bytes are those of one process."""
    hook = "tests.support.processes.dying:once"
    seen: list[int] = []
    made = build_store(
        options_of(corpus, tmp_path / "ray", workers=2, executor="ray", map=hook),
        lambda at: seen.append(at.num_documents),
    )
    assert sorted(path.name for path in tmp_path.glob("died-*")) == ["died-170", "died-20"]
    whole = build_store(options_of(corpus, tmp_path / "one", map=hook))
    assert contents(made.path) == contents(whole.path)
    assert seen == sorted(seen)
    assert seen[-1] == 300
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "more"}\n')
    assert append_store(made.path, [str(more)], map=hook).new_documents == 1


@pytest.mark.deep
def test_an_error_of_an_actor_is_that_of_the_build(tmp_path: Path, corpus: Path, ray: Any) -> None:
    """A damaged input is reported as in one process; an actor that always dies ends the build, which can be resumed."""
    damaged = tmp_path / "damaged.jsonl.gz"
    damaged.write_bytes(b"\x1f\x8b no gzip")
    with pytest.raises(BuildError, match=r"damaged\.jsonl\.gz"):
        build_store(options_of(damaged, tmp_path / "s", workers=2, executor="ray"))
    assert not (tmp_path / "s").exists()
    with pytest.raises(BuildError, match=r"an actor was lost \d+ times with the same unit .* resume"):
        build_store(
            options_of(corpus, tmp_path / "t", workers=2, executor="ray", map="tests.support.processes.dying:always")
        )
    with pytest.raises(ConfigError, match="another command"):
        build_store(options_of(corpus, tmp_path / "t", workers=1))


class FakeRay:
    """As much of Ray as the executor uses, in this process; calls end last first."""

    class exceptions:
        """Ray's errors."""

        class RayError(Exception):
            """Of Ray itself."""

        class RayTaskError(RayError):
            """Of the function that was called."""

    def __init__(self) -> None:
        self.killed, self.most, self._running = 0, 0, dict[int, Any]()

    def is_initialized(self) -> bool:
        return True

    def remote(self, **options: Any) -> Any:
        def of(kind: type) -> Any:
            fake = self

            class Actor:
                def __init__(self, *arguments: Any):
                    self.real = kind(*arguments)

                @property
                def make(self) -> Any:
                    actor = self

                    class Call:
                        @staticmethod
                        def remote(job: Any) -> int:
                            fake._running[call := len(fake._running)] = actor.real, job
                            return call

                    return Call

            Actor.remote = Actor  # type: ignore[attr-defined]
            return Actor

        return of

    def wait(self, calls: list[int], timeout: float) -> tuple[list[int], list[int]]:
        self.most = max(self.most, len(calls))
        return [max(calls)], []

    def get(self, call: int) -> Any:
        actor, job = self._running[call]
        return actor.make(job)

    def kill(self, actor: Any) -> None:
        self.killed += 1


def test_parts_come_in_order_and_few_are_in_flight(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever order the actors finish in; all of them are ended."""
    fake = FakeRay()
    monkeypatch.setattr(ray_actors, "_ray", lambda: fake)
    made = build_store(options_of(corpus, tmp_path / "ray", workers=3, executor="ray"))
    assert contents(made.path) == contents(build_store(options_of(corpus, tmp_path / "one")).path)
    assert fake.most == 3 * ray_actors._AHEAD
    assert fake.killed == 3


def test_a_second_run_on_the_same_output_is_refused(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: the driver holds the lock."""
    fake = FakeRay()
    refused: list[str] = []

    def ray() -> FakeRay:
        if not refused:
            refused.append("")
            with pytest.raises(StoreBusyError, match="is writing it"):
                build_store(options_of(corpus, tmp_path / "ray", workers=2, executor="ray"))
        return fake

    monkeypatch.setattr(ray_actors, "_ray", ray)
    build_store(options_of(corpus, tmp_path / "ray", workers=2, executor="ray"))
    assert refused


def test_ray_that_is_not_installed_is_named(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'tokenstore\[ray\]'"):
        build_store(options_of(corpus, tmp_path / "ray", executor="ray"))
