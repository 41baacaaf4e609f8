"""What `tokenstore adopt` refuses before it reads all tokens, and what it says."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.foreign.adopting import adopt, documents_of
from tests.support.foreign.files import DOCUMENTS, EOS, STARTED, datatrove, dolma, llmc, megatron, nanogpt
from tests.support.servers.range_server import RangeServer
from tokenstore import Plan, RemoteOptions, TokenLoader, open_store
from tokenstore.builder import append_store
from tokenstore.errors import BuildError, ConfigError, TokenStoreError
from tokenstore.foreign import AdoptOptions, ExportOptions
from tokenstore.store.length_index import add_length_index
from tokenstore.views.decoding import Decoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": None}, "tokenizer: the files do not name it; give --tokenizer FILE, or --vocab-size N"),
        ({"vocab_size": 0}, "vocab_size: expected 1..4294967296, found 0"),
        ({"eos_id": -1}, "eos_id: expected 0 or more"),
        ({"cut": "eos", "eos_at": "none"}, "eos_at: none and a cut at the end-of-text token contradict each other"),
        ({"cut": "both", "eos_at": "start"}, "needs the token at the end"),
        ({"eos_id": 100}, "eos token: expected an id below 100, found 100"),
        ({"eos_id": True}, "eos_id: expected an integer, found True"),
        ({"vocab_size": 1e5}, "vocab_size: expected an integer, found 100000.0"),
        ({"cut": "lines"}, "cut: expected one of index, eos, both, file, found 'lines'"),
        ({"eos_at": "top"}, "eos_at: expected one of end, start, none, found 'top'"),
        ({"dtype": "float32"}, "dtype: expected one of uint8, uint16, int32, uint32, int64, uint64, found 'float32'"),
        ({"format": "mds"}, "from: expected one of auto, megatron"),
        ({"eos_id": None, "cut": "eos"}, "eos_id: only the end-of-text token divides these megatron files"),
        ({"join": True}, "join: only with --cut eos, found the cut index"),
        ({"dtype": "uint32"}, "dtype: expected uint16, as the .idx says, found uint32"),
        ({"vocab_size": 70_000}, "vocabulary: 70,000 ids do not fit the uint16 tokens of .*--vocab-size 65536"),
        ({"eos_at": "end", "eos_id": 50}, "eos_at: expected documents that end with 50, found 0 % of a sample of 4"),
        ({"output": "x.bin"}, "exists and is not a token store"),
        (
            {"vocab_size": 99, "eos_id": None},
            r"token 2: expected an id below 99, found 99 \(.*x.bin\); the tokenizer or",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, message: str, tmp_path: Path) -> None:
    """The message says what to do; nothing is left at the output."""
    megatron(tmp_path / "x")
    output = tmp_path / str(options.pop("output", "s"))
    with pytest.raises((ConfigError, BuildError), match=message):
        adopt(output, tmp_path / "x", **options)
    assert {path.name for path in tmp_path.iterdir()} == {"x.bin", "x.idx"}


def test_inputs_that_name_nothing_or_too_much_are_refused(tmp_path: Path) -> None:
    """A missing file, a file named twice, two formats, an index for some files, training and validation files."""
    for name in ("train.bin", "val.bin"):
        nanogpt(tmp_path / name)
    megatron(tmp_path / "x")
    dolma(tmp_path / "y.npy")
    dolma(tmp_path / "z.npy", rows=None)

    def refused(match: str, *names: str, **options: object) -> None:
        with pytest.raises(ConfigError, match=match):
            adopt(tmp_path / "s", *(tmp_path / name for name in names), **options)

    refused("does not exist, also not as nothing.bin, nothing.ds, nothing.npy", "nothing")
    refused(r"x.bin is named more than once", "x", "x.idx")
    refused("expected files of one format, found dolma, megatron", "x", "y.npy")
    refused("some files have an index and others have none", "y.npy", "z.npy")
    refused("holds training and validation files", "", format="nanogpt")
    refused("z.npy has no index; cut at the end-of-text token", "z.npy", cut="index")
    refused("holds no files that end in .ds", "", format="datatrove")
    with pytest.raises(ConfigError, match="expected token files, found none"):
        adopt(tmp_path / "s")


@pytest.mark.parametrize(
    "options",
    [
        lambda: AdoptOptions(("x",), "s3://bucket/web", vocab_size=5),
        lambda: AdoptOptions(("https://host/x.bin",), "s", vocab_size=5),
        lambda: ExportOptions("s3://bucket/web", "dolma", "e"),
        lambda: ExportOptions("s", "dolma", "gs://bucket/e"),
    ],
)
def test_urls_are_refused(options: Callable[[], object]) -> None:
    """A link is a matter of one disk."""
    with pytest.raises(ConfigError, match=r"^(adopt|export): expected a path on a disk, found the URL .*://"):
        options()


def test_a_store_in_a_folder_of_token_files_is_skipped(tmp_path: Path) -> None:
    """Adopting the folder again finds the same files."""
    (tmp_path / "data").mkdir()
    megatron(tmp_path / "data" / "x")
    for _ in range(2):
        result = adopt(tmp_path / "data" / "store", tmp_path / "data", overwrite=True)
        assert documents_of(result.path) == DOCUMENTS


def test_a_store_at_the_output_is_replaced_only_on_request(tmp_path: Path) -> None:
    """The files that were linked stay."""
    made = nanogpt(tmp_path / "x.bin")
    adopt(tmp_path / "s", made, format="nanogpt")
    with pytest.raises(ConfigError, match="exists; choose another, or add --overwrite"):
        adopt(tmp_path / "s", made, format="nanogpt")
    adopt(tmp_path / "s", made, format="nanogpt", overwrite=True, cut="file")
    assert len(documents_of(tmp_path / "s")) == 1
    assert made.stat().st_nlink == 2


def test_wide_tokens_that_are_read_as_narrow_ones_are_noticed(tmp_path: Path) -> None:
    """Every second number is 0. --dtype decides."""
    tokens = [[*range(20, 90), EOS]]
    made = nanogpt(tmp_path / "x.bin", tokens, dtype="<u4")
    with pytest.raises(ConfigError, match=r"looks like uint32 .* --dtype uint32"):
        adopt(tmp_path / "s", made, format="nanogpt")
    assert documents_of(adopt(tmp_path / "s", made, format="nanogpt", dtype="uint32").path) == tokens
    assert len(documents_of(adopt(tmp_path / "t", made, format="nanogpt", dtype="uint16").path)) == 2


def test_ids_at_the_limit_of_uint16_are_a_reason_to_doubt(tmp_path: Path) -> None:
    """Ids that wrapped cannot be seen in the file."""
    notes: list[str] = []
    made = nanogpt(tmp_path / "x.bin", [[65_500, EOS]])
    adopt(tmp_path / "s", made, format="nanogpt", vocab_size=65_536, note=notes.append)
    assert "the largest id is 65,500, at the limit of uint16" in notes[0]


def test_an_unknown_or_absent_end_of_text_is_said(tmp_path: Path) -> None:
    """Without --eos-id nothing is checked; an id that never occurs is probably wrong."""
    notes: list[str] = []
    made = datatrove(tmp_path / "x.ds", metadata=False)
    assert not adopt(tmp_path / "s", made, eos_id=None, note=notes.append).ends_with_eos
    adopt(tmp_path / "t", made, eos_id=50, note=notes.append)
    assert notes[0].startswith("the end-of-text token is not known")
    assert notes[1] == "the end-of-text token 50 does not occur in the files; is --eos-id right?"


def test_a_store_without_a_tokenizer_says_why_it_cannot_decode(tmp_path: Path) -> None:
    """With one it decodes, and its end-of-text token is known."""
    made = llmc(tmp_path / "x.bin", [[256, 72, 105], [256, 33]])
    store = open_store(adopt(tmp_path / "s", made, vocab_size=257, eos_id=None, cut="file").path)
    with pytest.raises(TokenStoreError, match="tokenizer: cannot decode: the store has none"):
        store.decode(0)
    assert "the tokenizer is not known" in str(Decoder.of(store).problem)
    assert Decoder.of(store).text(store[0][:2]) == "<256><72>"
    store = open_store(adopt(tmp_path / "t", made, vocab_size=None, eos_id=None, tokenizer="bytes").path)
    assert store.decode(0) == "<|endoftext|>Hi"


def test_append_and_index_of_an_adopted_store(tmp_path: Path) -> None:
    """An append is refused with its reason; the length index is there."""
    path = adopt(tmp_path / "s", nanogpt(tmp_path / "x.bin"), format="nanogpt").path
    with pytest.raises(ConfigError, match="was adopted from nanogpt files, so there are no options to continue with"):
        append_store(path, [str(tmp_path)])
    assert not add_length_index(path)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_batches_of_an_adopted_store_are_those_of_a_built_one(packing: str, tmp_path: Path, make_store) -> None:
    """FMT-14: a header, and a dtype larger than needed, change nothing but the digest."""
    rng = np.random.default_rng(0)
    documents = [[EOS, *rng.integers(0, 99, rng.integers(1, 30)).tolist()] for _ in range(60)]
    adopted = adopt(tmp_path / "s", llmc(tmp_path / "x.bin", documents, dtype="<u4")).path
    built = make_store("built", documents, vocab_size=100, length_index=True)

    def batches(path: Path) -> list:
        plan = Plan.of({"one": str(path)}, 32, 4, packing=packing, seed=3)
        loader = TokenLoader(plan, rank=0, world_size=1)
        return [next(loader)["targets"].tolist() for _ in range(8)]

    assert open_store(adopted).dtype == np.uint32
    assert batches(adopted) == batches(built)


def test_an_adopted_store_at_a_url_is_read_after_its_headers(
    range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FMT-14: documents and batches of a store with first_byte, and with tokens wider than needed."""
    monkeypatch.setenv("TOKENSTORE_CACHE", str(tmp_path / "cache"))
    documents = [[EOS, *range(1, 5 + number % 30)] for number in range(60)]
    path = adopt(tmp_path / "s", llmc(tmp_path / "x.bin", documents, dtype="<u4")).path
    range_server.add_folder("bucket/web", path)
    with open_store("s3://bucket/web") as store:
        assert [document.tolist() for document in store] == documents
    for transport in ("spans", "mirror"):
        remote = RemoteOptions(transport=transport)
        plans = (Plan.of({"one": path}, 32, 4), Plan.of({"one": "s3://bucket/web"}, 32, 4, remote=remote))
        loaders = [TokenLoader(plan, rank=0, world_size=1) for plan in plans]
        for _ in range(4):
            local, fetched = (next(loader)["input_ids"].tolist() for loader in loaders)
            assert local == fetched


def test_options_take_paths_and_lists() -> None:
    """As a user of Python writes them."""
    options = AdoptOptions(["a", Path("b")], "s", vocab_size=5)
    assert (options.inputs, options.output) == (("a", "b"), Path("s"))
    assert STARTED[0][0] == EOS == DOCUMENTS[0][-1]
