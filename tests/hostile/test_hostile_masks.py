"""Damaged loss masks (P9, FMT-10): they decide which targets are omitted, and nothing else; never a crash."""

import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.forge import flip, overwrite, replace, unpinned
from tests.support.stores.masked import Documents, mask_files, random_masked, rewrite_mask, rows_by_hand, write_masked
from tokenstore import Plan, TokenLoader
from tokenstore.errors import CorruptionError, StateMismatchError, TokenStoreError
from tokenstore.store import open_store, verify

LENGTH, STEPS = 8, 6
pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit

DOCUMENTS = random_masked(1, [1 + i * 7 % 20 for i in range(25)])
LEARNED = Documents(DOCUMENTS.tokens, [[True] * len(ids) for ids in DOCUMENTS.tokens])
VARIANTS = (
    {"packing": "best_fit"},
    {"packing": "none", "shuffle": False},
    {"packing": "concat"},
    {"packing": "concat", "cross_document_targets": True},
)


def make_store(folder: Path) -> Path:
    """About ten shards of at least 20 tokens."""
    return write_masked(folder / "s", DOCUMENTS, shard_bytes=50, length_index=True)


def plan_of(path: Path, variant: dict) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs, on purpose
        return Plan.of(path, LENGTH, 4, num_steps=STEPS, **variant)


def damages(sound: bytes) -> Iterator[bytes]:
    """Masks of the same length: flipped bits, also the last ones; all 0, all 1, inverted, random."""
    yield from (flip(sound, bit) for bit in range(8 * len(sound) - 1, -1, -5))
    yield from (bytes(len(sound)), b"\xff" * len(sound), sound[::-1], bytes(255 - byte for byte in sound))
    yield from (np.random.default_rng(seed).bytes(len(sound)) for seed in range(4))


def masks_on_disk(path: Path) -> Documents:
    """The documents, with the masks that the files contain now."""
    bits, masks = [], []
    with open_store(path) as store:
        for shard, data in zip(store.shards(), mask_files(path).values(), strict=True):
            bits += [bool(byte >> j & 1) for byte in data for j in range(8)][: shard.num_tokens]
    for tokens in DOCUMENTS.tokens:
        masks.append(bits[: len(tokens)])
        del bits[: len(tokens)]
    return Documents(DOCUMENTS.tokens, masks)


def check_plan(plan: Plan, now: Documents) -> None:
    """Tokens are right; targets and labels are right or omitted, and omitted exactly where the files say so."""
    for step, batch in enumerate(TokenLoader(plan, format="hf")):
        right, left = (rows_by_hand(plan, step, {"s": documents}) for documents in (LEARNED, now))
        assert batch["input_ids"].tolist() == right.ids
        for name, whole, found in (
            ("shift_labels", right.targets, left.targets),
            ("labels", right.labels, left.labels),
        ):
            values = batch[name].numpy()
            assert ((values == np.array(whole)) | (values == -100)).all()
            assert (values == np.array(found)).all()


def sweep(path: Path) -> int:
    """Damage each mask in place in many ways, with plans opened before and after. Returns the number of ways."""
    open_plans = [unpinned(plan_of(path, variant)) for variant in VARIANTS]
    number = 0
    for name, sound in mask_files(path).items():
        for content in damages(sound):
            number += 1
            overwrite(path / name, content)
            assert content == sound or {finding.file for finding in verify(path)} == {name}
            now = masks_on_disk(path)
            check_plan(open_plans[number % len(VARIANTS)], now)
            if number % 8 == 0:
                check_plan(plan_of(path, VARIANTS[number // 8 % len(VARIANTS)]), now)
                with open_store(path) as store:
                    assert [store.loss_mask(i).tolist() for i in range(len(store))] == now.masks
        overwrite(path / name, sound)
    assert verify(path) == []
    return number


def test_a_damaged_mask_only_changes_which_targets_are_omitted(tmp_path: Path) -> None:
    """P9, FMT-10: verify names the file; targets and labels are right or -100, in plans opened before and after."""
    assert sweep(make_store(tmp_path)) > 100


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bits_after_the_last_token_have_no_effect(tmp_path: Path, variant: dict) -> None:
    """FMT-10: with matching checksums, verify finds them, and they change nothing."""
    path = make_store(tmp_path)
    with open_store(path) as store:
        sizes = [shard.num_tokens for shard in store.shards()]
    files = mask_files(path)
    odd = [number for number, size in enumerate(sizes) if size % 8]
    assert len(odd) > 3
    for number in odd:
        data = files[f"mask-{number:05d}.bin"]
        rewrite_mask(path, number, data[:-1] + bytes([data[-1] | 0xFF << sizes[number] % 8 & 0xFF]))
    assert [finding.file for finding in verify(path)] == [f"mask-{number:05d}.bin" for number in odd]
    check_plan(plan_of(path, variant), DOCUMENTS)


KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(b"\xff"),
    "long": lambda path: path.write_bytes(b"\xff" * 4096),
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "link to dev zero": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_replaced_while_a_plan_is_open_is_reported(tmp_path: Path, kind: str) -> None:
    """P9: a mask that is not a file of that size is reported by name; once it is restored, the same plan continues."""
    path = make_store(tmp_path)
    sound = mask_files(path)
    plan = plan_of(path, VARIANTS[0])
    for name in sound:
        (path / name).unlink()
        KINDS[kind](path / name)
    loader = TokenLoader(plan, format="hf")
    for _ in range(2):
        with pytest.raises(TokenStoreError, match=r"mask-\d{5}\.bin"):
            next(iter(loader))
        with pytest.raises(TokenStoreError, match=r"mask-\d{5}\.bin"):
            plan.batch(0)
    assert [finding.file for finding in verify(path)] == list(sound)
    with pytest.raises(TokenStoreError, match=r"mask-00000\.bin"):
        open_store(path)
    for name, content in sound.items():
        (path / name).rmdir() if (path / name).is_dir() else (path / name).unlink(missing_ok=True)
        (path / name).write_bytes(content)
    assert loader.step == 0
    for step, batch in enumerate(loader):
        rows = rows_by_hand(plan, step, {"s": DOCUMENTS})
        assert batch["shift_labels"].tolist() == plan.batch(step)["targets"].tolist() == rows.targets
        assert batch["labels"].tolist() == rows.labels


def test_a_pickled_plan_refuses_changed_masks(tmp_path: Path) -> None:
    """P9, FMT-5: a plan is not reopened over a store whose masks and manifest were replaced."""
    path = make_store(tmp_path)
    pickled = pickle.dumps(plan_of(path, VARIANTS[0]))
    state = plan_of(path, VARIANTS[0]).state(2)
    data = mask_files(path)["mask-00000.bin"]
    rewrite_mask(path, 0, flip(data, 0))
    with pytest.raises(CorruptionError, match="it was replaced while a run was using it"):
        pickle.loads(pickled)
    with pytest.raises(StateMismatchError, match="digest was"):
        TokenLoader(plan_of(path, VARIANTS[0])).load_state_dict(state)
    replace(path / "mask-00000.bin", data)
    assert [finding.file for finding in verify(path)] == ["mask-00000.bin"]
