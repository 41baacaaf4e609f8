"""Hostile files (P9): always a TokenStoreError that names the file and says what to do; never a crash, never a hang.

The sweeps over damaged indexes and tokens run twice: here, and all together in a process of their own, where a crash is
seen as a return code. Indexes are damaged in place while plans have them mapped, so kernels meet every value there is.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenstore
from tests.conftest import random_documents, write_store
from tests.forge import flip, forge, overwrite, replace, seal
from tokenstore.errors import ConfigError, CorruptionError, FormatError, TokenStoreError
from tokenstore.format.layout import MAX_MANIFEST_BYTES
from tokenstore.store import open_store, verify

ROOT = Path(__file__).parents[2]
NOBODY = 65_534
pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit


def make_small(path: Path, vocab_size: int = 300) -> Path:
    """30 documents of 1..20 tokens in 4 shards, one lookup entry."""
    shard_bytes = 100 * (2 if vocab_size <= 65_536 else 4)
    return write_store(path, random_documents(1, 30, 20, vocab_size), vocab_size, shard_bytes)


def make_wide(path: Path) -> Path:
    """The same in uint32."""
    return make_small(path, 70_000)


def make_long(path: Path) -> Path:
    """12 documents of up to 5,000 tokens in 3 shards, 6 lookup entries."""
    return write_store(path, [*random_documents(2, 11, 2000), [7] * 5000], shard_bytes=15_000)


STORES = {"small": make_small, "wide": make_wide, "long": make_long}
LENGTHS = {"small": 8, "wide": 8, "long": 512}  # of a sequence


def tells(error: object, *parts: object) -> None:
    """A message says what was expected, what was found, where, and what to do."""
    text = str(error)
    assert re.search(r"expected .*, found .*\(.*\); \w|expected .*, found .*\(.*\); run `", text, re.DOTALL), text
    assert all(str(part) in text for part in parts), text
    assert len(text) < 1000


def refused(path: Path, *parts: object) -> TokenStoreError:
    """Opening the store is refused in every way there is, naming path and `parts`; verify tells the same, and returns."""
    with pytest.raises(TokenStoreError) as caught:
        open_store(path)
    tells(caught.value, path, *parts)
    with pytest.raises(TokenStoreError):
        tokenstore.Plan.of(path, sequence_length=8, global_batch_size=4, num_steps=1, packing="concat")
    findings = verify(path)
    assert any(all(str(part) in str(finding) for part in parts) for finding in findings), findings
    return caught.value


# ---- the sweeps: also called by the process of their own


def plan_of(path: Path, **fields: object) -> tokenstore.Plan:
    """A plan of `concat` over a bit more than an epoch of the store; its batches are of 4 sequences."""
    fields = {"sequence_length": LENGTHS[path.name], "packing": "concat", **fields}
    steps = json.loads((path / "manifest.json").read_bytes())["num_tokens"] // fields["sequence_length"] // 4 + 1
    return tokenstore.Plan.of(path, global_batch_size=4, num_steps=steps, **fields)


def every_step(plan: tokenstore.Plan, name: str) -> None:
    """Every step of a plan is sane, or a TokenStoreError that names the file `name`."""
    (store,) = plan.stores.values()
    length = plan.config.sequence_length
    sampler = plan.sampler()
    for step in range(plan.num_steps or 0):
        with told(name):
            batch = plan.batch(step)
            for field, low in (("input_ids", 0), ("targets", -100)):
                assert batch[field].shape == (4, length)
                assert low <= batch[field].min() <= batch[field].max() < store.vocab_size
        with told(name):
            for pieces in plan.documents(step):
                assert sum(piece.stop - piece.start for piece in pieces) == length
                assert all(0 <= p.start < p.stop <= store.num_tokens and 0 <= p.document < len(store) for p in pieces)
        with told(name):
            ids, targets, positions, documents = np.empty((4, 4, length), np.int64)
            sampler.fill(sampler.locate(step, 0, 4), ids, targets)
            sampler.annotate(positions, documents, np.empty((4, length), bool))
            assert 0 <= positions.min() <= positions.max() < length
            assert 0 <= documents.min() <= documents.max() < length


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Allow a TokenStoreError, if it says what it must and names the file."""
    try:
        yield
    except TokenStoreError as error:
        tells(error, name)


def every_document(path: Path, name: str) -> None:
    """Every document of the store is sane, or a TokenStoreError that names the file `name`."""
    with told(name), open_store(path, check="lazy") as store:
        for i in range(len(store)):
            with told(name):
                document = store[i]
                assert 1 <= document.size <= store.num_tokens
                assert document.max() < store.vocab_size


def sweep(path: Path, name: str, contents: Iterable[bytes]) -> int:
    """Damage a file of a sound store in place, in many ways; ask for all it has. Returns how many ways."""
    sound = (path / name).read_bytes()
    variants = ({}, {"shuffle": False}, {"cross_document_targets": True})
    open_plans = [plan_of(path, **fields) for fields in variants]
    number = 0
    for number, content in enumerate(contents, 1):
        assert len(content) == len(sound)
        overwrite(path / name, content)
        findings = verify(path)
        assert content == sound or any(name in str(finding) for finding in findings), findings
        every_document(path, name)
        every_step(open_plans[number % 3], name)
        with told(name):
            every_step(plan_of(path, **variants[(number // 3) % 3]), name)
    overwrite(path / name, sound)
    assert verify(path) == []
    return number


def flips(path: Path, name: str, all_bits: bool) -> Iterator[bytes]:
    """The file with one bit turned over: every bit, or in every byte one at random."""
    sound = (path / name).read_bytes()
    rng = np.random.default_rng(len(sound))
    for byte in range(len(sound)):
        for bit in range(8) if all_bits else (int(rng.integers(8)),):
            yield flip(sound, 8 * byte + bit)


def hostile_values(path: Path) -> Iterator[bytes]:
    """boundaries.bin with every entry, of the starts and of the lookup, set to every bad number."""
    sound = np.frombuffer((path / "boundaries.bin").read_bytes(), "<i8")
    body = json.loads((path / "manifest.json").read_bytes())
    tokens, documents = body["num_tokens"], body["num_documents"]
    values = (-1, -(2**63), -(2**62), 2**62, 2**63 - 1, 0, documents - 1, documents, tokens - 1, tokens, tokens + 1)
    for entry in range(sound.size):
        for value in values:
            damaged = sound.copy()
            damaged[entry] = value
            yield damaged.tobytes()


def hostile_patterns(path: Path, num_random: int) -> Iterator[bytes]:
    """boundaries.bin as a whole made of bad numbers: constant, falling, swapped, cut elsewhere, at random."""
    sound = np.frombuffer((path / "boundaries.bin").read_bytes(), "<i8")
    body = json.loads((path / "manifest.json").read_bytes())
    tokens, documents = body["num_tokens"], body["num_documents"]
    starts, lookup = sound[: documents + 1], sound[documents + 1 :]
    falling = np.concatenate([starts[::-1], lookup[::-1]])
    for value in (0, -1, 1, documents, tokens, 2**62, -(2**63), 2**63 - 1):
        yield np.full_like(sound, value).tobytes()
        yield np.concatenate([np.full_like(starts, value), lookup]).tobytes()
        yield np.concatenate([starts, np.full_like(lookup, value)]).tobytes()
        inside = np.full_like(starts, value)
        inside[0], inside[-1] = 0, tokens  # what opening looks at
        yield np.concatenate([inside, lookup]).tobytes()
    yield from (falling.tobytes(), sound[::-1].tobytes(), (-sound).tobytes(), np.roll(sound, 1).tobytes())
    yield from (np.roll(sound, -1).tobytes(), sound.byteswap().tobytes(), np.arange(sound.size, dtype="<i8").tobytes())
    rng = np.random.default_rng(7)
    for turn in range(num_random):
        inside = rng.integers(-2, tokens + 3, documents + 1)
        if turn % 3 == 0:
            inside = np.sort(inside)
        elif turn % 3 == 1:  # as sound as can be, cut into other documents: they straddle shards
            inside = np.sort(rng.choice(tokens - 1, documents + 1, replace=False))
        inside[0], inside[-1] = 0, tokens
        table = lookup if turn % 2 else rng.integers(-1, documents + 1, lookup.size)
        yield np.concatenate([inside, table]).astype("<i8").tobytes()


def bad_ids(path: Path, name: str) -> Iterator[bytes]:
    """A shard in which one token is not below the vocabulary, for every token."""
    body = json.loads((path / "manifest.json").read_bytes())
    sound = np.frombuffer((path / name).read_bytes(), body["dtype"])
    for at in range(0, sound.size, max(1, sound.size // 100)):
        damaged = sound.copy()
        damaged[at] = body["vocab_size"] if at % 2 else np.iinfo(sound.dtype).max
        yield damaged.tobytes()


SWEEPS: dict[str, Callable[[Path], int]] = {
    "flipped-boundaries": lambda path: sweep(path, "boundaries.bin", flips(path, "boundaries.bin", all_bits=False)),
    "hostile-values": lambda path: sweep(path, "boundaries.bin", hostile_values(path)),
    "hostile-patterns": lambda path: sweep(path, "boundaries.bin", hostile_patterns(path, 60)),
    "bad-ids": lambda path: sweep(path, "tokens-00000.bin", bad_ids(path, "tokens-00000.bin")),
}


# The width of tokens is nothing to an index: `wide` is for the tokens alone.
RUNS = [(name, what) for name in STORES for what in SWEEPS if name != "wide" or what == "bad-ids"]


def sweep_all(folder: Path) -> int:
    """Every sweep."""
    return sum(SWEEPS[what](STORES[name](folder / what / name)) for name, what in RUNS)


# ---- damaged indexes and tokens


@pytest.mark.parametrize(("name", "what"), RUNS)
def test_damaged_indexes_and_tokens_are_found_and_never_followed(name: str, what: str, tmp_path: Path) -> None:
    """P9: verify names the file; documents and batches are sane, or an error names the file and what to do."""
    assert SWEEPS[what](STORES[name](tmp_path / name)) > 10


def test_no_damage_crashes_the_process(tmp_path: Path) -> None:
    """P9: all sweeps in a process of their own end with return code 0: no segmentation fault, no abort, no hang."""
    code = "import sys, pathlib; from tests.hostile import test_hostile as t; print(t.sweep_all(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 1000


@pytest.mark.parametrize("name", ["small", "wide"])
def test_every_flipped_bit_of_a_shard_is_found(name: str, tmp_path: Path) -> None:
    """P9: tokens are not read at open; verify names the shard, and an id that is none is refused while reading."""
    path = STORES[name](tmp_path / name)
    shard = min(path.glob("tokens-*.bin"), key=lambda file: file.stat().st_size).name
    assert sweep(path, shard, flips(path, shard, all_bits=True)) == 8 * (path / shard).stat().st_size


@pytest.mark.parametrize("name", ["small", "long"])
def test_flipped_bits_of_a_large_shard_are_found_by_verify(name: str, tmp_path: Path) -> None:
    """P9: whatever bit of whatever shard, verify names exactly that shard."""
    path = STORES[name](tmp_path / name)
    rng = np.random.default_rng(5)
    for shard in sorted(path.glob("tokens-*.bin")):
        sound = shard.read_bytes()
        for bit in rng.integers(0, 8 * len(sound), 40).tolist():
            overwrite(shard, flip(sound, bit))
            assert {finding.file for finding in verify(path)} == {shard.name}
        overwrite(shard, sound)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STORES)
def test_every_flipped_bit_of_the_boundaries_is_found_and_never_followed(name: str, tmp_path: Path) -> None:
    """P9: all bits of boundaries.bin, one by one; and many boundaries at random."""
    path = STORES[name](tmp_path / name)
    sweep(path, "boundaries.bin", flips(path, "boundaries.bin", all_bits=True))
    sweep(path, "boundaries.bin", hostile_patterns(path, 3000))


@given(data=st.data())
def test_boundaries_of_any_integers_are_never_followed(data: st.DataObject) -> None:
    """P9: hypothesis looks for numbers that the kernels would follow out of the file."""
    numbers = st.one_of(st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = write_store(Path(folder) / "small", [[1, 2, 3], [4], [5] * 10, [6, 7]] * 2, shard_bytes=40)
        damaged = np.array(data.draw(st.lists(numbers, min_size=10, max_size=10)), "<i8")
        if data.draw(st.booleans()):  # as opening wants it
            damaged[0], damaged[8] = 0, 32
        sweep(path, "boundaries.bin", [damaged.tobytes()])


def test_the_lookup_is_never_read_as_if_it_were_starts(tmp_path: Path) -> None:
    """P9: where the last start falls after opening, the walk over documents stops there and not behind the index."""
    path = write_store(tmp_path / "s", [[1] * 4096, [2] * 4096])
    fields = {"global_batch_size": 1, "num_steps": 1024, "shuffle": False, "packing": "concat"}
    plan = tokenstore.Plan.of(path, sequence_length=8, **fields)
    overwrite(path / "boundaries.bin", np.array([0, 4096, 8188, 8192, 1], "<i8").tobytes())
    for ask in (plan.batch, plan.documents):
        with pytest.raises(CorruptionError) as caught:
            ask(1023)
        tells(caught.value, path / "boundaries.bin", "document of token 8188")


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_an_id_outside_the_vocabulary_is_an_error_that_names_the_shard(tmp_path: Path, vocab_size: int) -> None:
    """P9: it never reaches a model: store[i] and plan.batch refuse it with shard, place and what to do."""
    path = write_store(tmp_path / "s", [[1] * 8, [2] * 8, [3] * 8], vocab_size, shard_bytes=1)
    width = 2 if vocab_size < 65_536 else 4
    overwrite(path / "tokens-00001.bin", vocab_size.to_bytes(width, "little"))
    with open_store(path) as store:
        assert store[0].tolist() == [1] * 8
        with pytest.raises(CorruptionError, match=rf"expected ids below {vocab_size}, found {vocab_size} ") as caught:
            store[1]
        tells(caught.value, path / "tokens-00001.bin", "document 1", "tokenstore verify")
    fields = {"global_batch_size": 1, "num_steps": 3, "shuffle": False, "packing": "concat"}
    plan = tokenstore.Plan.of(path, sequence_length=8, **fields)
    assert plan.batch(0)["input_ids"].tolist() == [[1] * 8]
    with pytest.raises(CorruptionError, match=rf"expected ids below {vocab_size}, found {vocab_size} ") as caught:
        plan.batch(1)
    tells(caught.value, path / "tokens-00001.bin", "tokens from 0 on", "tokenstore verify")
    assert plan.batch(2)["input_ids"].tolist() == [[3] * 8]


def test_a_bad_id_that_is_only_a_target_is_an_error_too(tmp_path: Path) -> None:
    """P9: the token behind a row's last one is a target; an id that is none is refused there as well."""
    path = write_store(tmp_path / "s", [[1] * 16], 300)
    overwrite(path / "tokens-00000.bin", b"\1\0" * 8 + b"\xff\xff")
    fields = {"global_batch_size": 1, "num_steps": 2, "shuffle": False, "packing": "concat"}
    plan = tokenstore.Plan.of(path, sequence_length=8, **fields)
    with pytest.raises(CorruptionError, match=r"found 65535 .*tokens-00000\.bin"):
        plan.batch(0)


def test_a_row_over_more_shards_than_may_be_mapped_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7, P9: many tiny shards under a low descriptor limit are slow, and never a hang."""
    monkeypatch.setattr("tokenstore.sampling.tables.max_maps", lambda: 4)
    path = write_store(tmp_path / "s", [[i, i] for i in range(1, 41)], shard_bytes=4)
    plan = tokenstore.Plan.of(path, sequence_length=32, global_batch_size=2, num_steps=2, packing="concat")
    for step in range(2):
        documents, batch = plan.documents(step), plan.batch(step)
        ids = [[piece.document + 1 for piece in row for _ in range(piece.start, piece.stop)] for row in documents]
        assert batch["input_ids"].tolist() == ids


# ---- the manifest


def test_every_truncation_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """P9: however short manifest.json was cut, opening says so and names it."""
    path = make_small(tmp_path / "s")
    sound = (path / "manifest.json").read_bytes()
    for size in range(len(sound)):
        replace(path / "manifest.json", sound[:size])
        with pytest.raises(CorruptionError) as caught:
            open_store(path)
        tells(caught.value, path / "manifest.json", "copy or build the store again")
    replace(path / "manifest.json", sound)
    assert verify(path) == []


def flip_manifest(path: Path, all_bits: bool) -> None:
    for content in list(flips(path, "manifest.json", all_bits)):
        overwrite(path / "manifest.json", content)
        with pytest.raises(TokenStoreError) as caught:
            open_store(path)
        tells(caught.value, path / "manifest.json")


def test_a_flipped_bit_in_any_byte_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """P9, FMT-5: any flipped bit of the manifest is seen at open."""
    flip_manifest(make_small(tmp_path / "s"), all_bits=False)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_flipped_bit_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """P9, FMT-5: all of them, one by one."""
    flip_manifest(make_small(tmp_path / "s"), all_bits=True)


@given(st.binary(max_size=60), st.integers(0, 5000), st.integers(0, 30))
def test_a_manifest_overwritten_in_part_is_refused(data: bytes, at: int, cut: int) -> None:
    """P9: any bytes in the place of any others: the same manifest, or a TokenStoreError that names it."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_store(Path(folder) / "s", [[1, 2], [3]])
        sound = (path / "manifest.json").read_bytes()
        at %= len(sound) + 1
        changed = sound[:at] + data + sound[at + cut :]
        replace(path / "manifest.json", changed)
        try:
            assert [document.tolist() for document in open_store(path)] == [[1, 2], [3]]
            assert json.loads(changed) == json.loads(sound)
        except TokenStoreError as error:
            tells(error, path / "manifest.json")


def shard(**changes: object) -> Callable[[dict], None]:
    return lambda body: body["shards"][1].update(changes)


FORGERIES: dict[str, Callable[[dict], object]] = {
    **{
        f"shard named {name!r}": shard(file=name)
        for name in ("../x", "/etc/passwd", "a/b", ".hidden", "..", ".", "", "x\0")
    },
    **{
        f"side file named {name!r}": lambda body, name=name: body["files"].update({name: body["files"]["inputs.jsonl"]})
        for name in ("../x", "/etc/passwd", ".hidden", "")
    },
    **{
        f"tokenizer named {name!r}": lambda body, name=name: body["tokenizer"].update(file=name)
        for name in ("../x", "/etc/passwd")
    },
    **{
        f"shard {key} {value!r:.30}": shard(**{key: value})
        for key in ("num_bytes", "num_tokens", "first_token", "num_documents", "first_document")
        for value in (-1, -(2**63), 2**62, 2**63, 10**300, True, "5", None, [5])
    },
    **{
        f"{key} {value!r:.30}": lambda body, key=key, value=value: body.update({key: value})
        for key in ("num_tokens", "num_documents", "vocab_size")
        for value in (0, -1, 2**63, 10**300, True, "5", None)
    },
    "shards overlap": shard(first_token=0, first_document=0),
    "a gap between shards": shard(first_token=91),
    "shards swapped": lambda body: body["shards"].reverse(),
    "one shard twice": lambda body: body["shards"].append(body["shards"][-1]),
    "a shard less": lambda body: body["shards"].pop(),
    "no shards": lambda body: body["shards"].clear(),
    "more tokens": lambda body: body.update(num_tokens=body["num_tokens"] + 1),
    "fewer documents": lambda body: body.update(num_documents=body["num_documents"] - 1),
    "dtype uint32": lambda body: body.update(dtype="uint32"),
    "dtype object": lambda body: body.update(dtype="O"),
    "dtype list": lambda body: body.update(dtype=["uint16"]),
    "vocabulary for uint32": lambda body: body.update(vocab_size=70_000),
    "boundaries of another size": lambda body: body["files"]["boundaries.bin"].update(num_bytes=248),
    "no boundaries": lambda body: body["files"].pop("boundaries.bin"),
    "unhashable tokenizer": lambda body: body["tokenizer"].update(sha256=[]),
}


@pytest.mark.parametrize("edit", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_manifest_is_refused_at_open(tmp_path: Path, edit: Callable[[dict], object]) -> None:
    """P9: checksum and digest fit and the fields do not: refused before a file they name is touched."""
    path = make_small(tmp_path / "s")
    for lure in (tmp_path / "x", path / ".hidden"):  # what a reader that trusts the names would find
        lure.write_bytes((path / "tokens-00001.bin").read_bytes())
    error = refused(forge(path, edit), path / "manifest.json")
    assert isinstance(error, CorruptionError)


RAW = {
    "duplicate keys": lambda text: text.replace(b'"counts": {}', b'"counts": {}, "counts": {}'),
    "NaN": lambda text: text.replace(b'"num_tokens": 288', b'"num_tokens": NaN'),
    "a float": lambda text: text.replace(b'"num_tokens": 288', b'"num_tokens": 288.0'),
    "an exponent": lambda text: text.replace(b'"num_tokens": 288', b'"num_tokens": 2.88e2'),
    "100,000 brackets": lambda text: b"[" * 100_000,
    "100,000 objects": lambda text: b'{"a":' * 100_000,
    "brackets that close": lambda text: b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "nested options": lambda text: text.replace(b'"options": {}', b'"options": {"a":' + b"[" * 970 + b"]" * 970 + b"}"),
    "a number of 10,000 digits": lambda text: text.replace(b"288", b"2" * 10_000),
    "not UTF-8": lambda text: text.replace(b"tests", b"t\xffsts"),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "zeros": lambda text: bytes(len(text)),
    "empty": lambda text: b"",
    "two manifests": lambda text: text + text,
    "another tool's": lambda text: b'{"chunks": [], "config": {"data_format": ["int"]}}\n',
    "version 2": lambda text: seal({**json.loads(text), "format_version": 2}),
    "version '1'": lambda text: seal({**json.loads(text), "format_version": "1"}),
    "version 0": lambda text: seal({**json.loads(text), "format_version": 0}),
    "version true": lambda text: seal({**json.loads(text), "format_version": True}),
    "version missing": lambda text: seal({k: v for k, v in json.loads(text).items() if k != "format_version"}),
    "another format": lambda text: seal({**json.loads(text), "format": "zarr"}),
}


@pytest.mark.parametrize("edit", RAW.values(), ids=RAW)
def test_a_manifest_of_hostile_bytes_is_refused_at_open(tmp_path: Path, edit: Callable[[bytes], bytes]) -> None:
    """P9: what no JSON writer of ours makes is refused with the manifest's path, and costs no stack and no time."""
    path = make_small(tmp_path / "s")
    sound = (path / "manifest.json").read_bytes()
    changed = edit(sound)
    assert changed != sound
    replace(path / "manifest.json", changed)
    refused(path, path / "manifest.json")


def test_a_newer_version_says_what_to_install(tmp_path: Path) -> None:
    """P9: a store of the future is not called damaged: it is a FormatError that asks for a newer tokenstore."""
    path = make_small(tmp_path / "s")
    body = {**json.loads((path / "manifest.json").read_bytes()), "format_version": 2, "masks": []}
    replace(path / "manifest.json", seal(body))
    error = refused(path, path / "manifest.json", "found 2", "install a newer tokenstore")
    assert isinstance(error, FormatError)


def test_a_manifest_too_large_to_be_one_is_not_read(tmp_path: Path) -> None:
    """P9: a sparse file of more than 1 GiB in the manifest's place costs no memory."""
    path = make_small(tmp_path / "s")
    replace(path / "manifest.json", b"")
    os.truncate(path / "manifest.json", MAX_MANIFEST_BYTES + 1)
    refused(path, path / "manifest.json", f"found {MAX_MANIFEST_BYTES + 1}")


def test_a_forged_store_of_a_thousand_million_empty_documents_is_never_followed(tmp_path: Path) -> None:
    """P9, P7: sizes that fit, in sparse files full of zeros: opening is cheap, reading is an error that names the index."""
    path = make_small(tmp_path / "s")
    documents = tokens = 10**9
    size = 8 * (documents + 1 + -(-tokens // 4096))

    def edit(body: dict) -> None:
        body.update(num_tokens=tokens, num_documents=documents)
        body["shards"] = [
            {**body["shards"][0], "num_tokens": tokens, "num_documents": documents, "num_bytes": 2 * tokens}
        ]
        body["files"]["boundaries.bin"]["num_bytes"] = size

    for name, length in (("boundaries.bin", size), ("tokens-00000.bin", 2 * tokens)):
        replace(path / name, b"")
        os.truncate(path / name, length)
    with open(path / "boundaries.bin", "r+b") as file:
        file.seek(8 * documents)
        file.write(tokens.to_bytes(8, "little"))
    forge(path, edit)
    with open_store(path) as store:
        for i in (0, 1, documents - 2):
            with pytest.raises(CorruptionError) as caught:
                store[i]
            tells(caught.value, path / "boundaries.bin", f"document {i}")
    plan = tokenstore.Plan.of(path, sequence_length=8, global_batch_size=4, num_steps=3, packing="concat")
    for step in range(3):
        with pytest.raises(CorruptionError) as caught:
            plan.batch(step)
        tells(caught.value, path / "boundaries.bin")


# ---- sizes


@pytest.mark.parametrize("name", ["boundaries.bin", "tokens-00000.bin", "tokens-00003.bin"])
def test_every_truncation_of_index_and_shards_is_refused(tmp_path: Path, name: str) -> None:
    """P9: every shorter length, and a longer one, is seen at open; opened lazily, before a byte of it is used."""
    path = make_small(tmp_path / "s")
    sound = (path / name).read_bytes()
    for content in (*(sound[:size] for size in range(len(sound))), sound + b"\0", sound + sound):
        replace(path / name, content)
        with pytest.raises(CorruptionError) as caught:
            open_store(path)
        tells(caught.value, path / name, f"found {len(content)}", "copy or build the store again")
        with pytest.raises(CorruptionError) as caught:
            list(open_store(path, check="lazy"))
        tells(caught.value, path / name)
    assert any(name in str(finding) for finding in verify(path))


def test_a_side_file_of_another_size_is_refused_at_open(tmp_path: Path) -> None:
    """P9: files that no reader needs are counted too."""
    path = make_small(tmp_path / "s")
    replace(path / "inputs.jsonl", b"{}\n")
    refused(path, "inputs.jsonl")


# ---- no regular files


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path may have a hundred characters
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "fifo": make_fifo,
    "socket": make_socket,
    "directory": lambda path: path.mkdir(),
    "link to dev zero": lambda path: path.symlink_to("/dev/zero"),
    "link to dev null": lambda path: path.symlink_to("/dev/null"),
    "link to a fifo": lambda path: (make_fifo(path.parent.parent / "pipe"), path.symlink_to("../pipe")),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to its folder": lambda path: path.symlink_to("."),
}


@pytest.mark.parametrize("name", ["manifest.json", "boundaries.bin", "tokens-00000.bin", "inputs.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    """P9: a pipe or device in the place of any file hangs neither opening, reading, planning nor verify."""
    path = make_small(tmp_path / "s")
    (path / name).unlink()
    KINDS[kind](path / name)
    refused(path, name)
    if name.startswith("tokens"):
        with open_store(path, check="lazy") as store:
            with pytest.raises(TokenStoreError) as caught:
                store[0]
            tells(caught.value, path / name)
            assert store[29].size  # in another shard
    elif name == "inputs.jsonl":
        with open_store(path, check="lazy") as store:
            assert len(list(store)) == 30


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Without root's right to read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_store() -> Iterator[Path]:
    """A small store in a folder that anybody may enter (pytest's own may not)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield make_small(folder / "s")
    (folder / "s").chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["manifest.json", "boundaries.bin", "tokens-00000.bin"])
def test_a_file_that_may_not_be_read_is_told_by_name(public_store: Path, name: str) -> None:
    """P9: missing permission is no damage: the error names the file and says to look at permissions or limits."""
    (public_store / name).chmod(0)
    with unprivileged():
        with pytest.raises(TokenStoreError, match="Permission denied") as caught:
            list(open_store(public_store))
        assert type(caught.value) is TokenStoreError
        tells(caught.value, public_store / name, "check")
        assert any(name in str(finding) and "Permission denied" in str(finding) for finding in verify(public_store))


def test_a_folder_that_may_not_be_entered_is_told_by_name(public_store: Path) -> None:
    """P9: neither a store in a closed folder nor a closed store is called missing or damaged."""
    public_store.chmod(0)
    with unprivileged():
        for path in (public_store, public_store / "inside"):
            with pytest.raises(TokenStoreError, match="Permission denied") as caught:
                open_store(path)
            tells(caught.value, path, "check the path and its permissions")
            assert "Permission denied" in str(verify(path)[0])


def test_a_disk_that_cannot_be_read_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an input/output error while the manifest or a shard is read is a TokenStoreError that names the file."""
    path = make_small(tmp_path / "s")
    store = open_store(path)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(TokenStoreError, match="Input/output error") as caught:
            open_store(path)
        tells(caught.value, path / "manifest.json")
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", fail)
        with pytest.raises(TokenStoreError, match="Input/output error") as caught:
            store.shard(1)
        tells(caught.value, path / "tokens-00001.bin")


# ---- no store at all


def foreign(make: Callable[[Path], object]) -> Callable[[Path], Path]:
    def prepare(folder: Path) -> Path:
        path = folder / "s"
        make(path)
        return path

    return prepare


NO_STORES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a missing path": (foreign(lambda path: None), "found nothing"),
    "an empty directory": (foreign(lambda path: path.mkdir()), "found a directory without manifest.json"),
    "a directory of another tool": (
        foreign(lambda path: (path.mkdir(), (path / "train.bin").write_bytes(bytes(100)))),
        "found a directory without manifest.json",
    ),
    "another tool's manifest": (
        foreign(
            lambda path: (path.mkdir(), (path / "manifest.json").write_text('{"name": "extension", "version": 3}\n'))
        ),
        "is this path a token store?",
    ),
    "a file": (foreign(lambda path: path.write_bytes(b"text")), "found a file"),
    "a fifo": (foreign(make_fifo), "found a file"),
    "a device": (foreign(lambda path: path.symlink_to("/dev/zero")), "found a file"),
    "a link to nothing": (foreign(lambda path: path.symlink_to("nothing")), "found nothing"),
    "a link to itself": (foreign(lambda path: path.symlink_to("s")), "found nothing"),
    "an unfinished build": (
        foreign(lambda path: path.with_name("s.building").mkdir()),
        "found an unfinished build",
    ),
    "an unfinished build with an empty directory": (
        foreign(lambda path: (path.mkdir(), path.with_name("s.building").mkdir())),
        "run the same build command again",
    ),
    "a path below a file": (lambda folder: ((folder / "f").write_bytes(b""), folder / "f" / "s")[1], "found nothing"),
    "a name too long": (lambda folder: folder / ("x" * 5000), "File name too long"),
    "a name with a zero byte": (lambda folder: folder / "a\0b", "found nothing"),
    "the root": (lambda folder: Path("/"), "found a directory without manifest.json"),
}


@pytest.mark.parametrize(("prepare", "found"), NO_STORES.values(), ids=NO_STORES)
def test_what_is_no_store_is_told_as_such(tmp_path: Path, prepare: Callable[[Path], Path], found: str) -> None:
    """P9: the message says what stands at the path instead of a store, and what to give or run."""
    path = prepare(tmp_path)
    with pytest.raises(TokenStoreError) as caught:
        open_store(path)
    assert not isinstance(caught.value, CorruptionError | ConfigError)
    text = str(caught.value)
    assert found in text
    assert str(path) in text
    assert re.search(r"\); (give the directory|run the same build|is this path|check the path)", text)
    with pytest.raises(TokenStoreError):
        tokenstore.Plan.of({"web": path}, sequence_length=8, global_batch_size=4, num_steps=1, packing="concat")
    (finding,) = verify(path)
    assert (finding.file, finding.place) == (str(path), "open")
    assert found in finding.found


def test_a_finished_store_beside_an_unfinished_build_opens(tmp_path: Path) -> None:
    """P8: a rebuild under way does not hide the store that is there."""
    path = make_small(tmp_path / "s")
    (tmp_path / "s.building").mkdir()
    assert len(open_store(path)) == 30
