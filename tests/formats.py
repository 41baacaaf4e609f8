"""Token files of other tools, written and read by those tools themselves: `python -m tests.formats`, or `.ci/formats`.

Not part of the test suite, because the tools need packages that tokenstore does not. A tool that is not installed is reported as
not run, and the exit code is 1.
"""

import io
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.support.foreign.adopting import adopt, documents_of
from tokenstore import Plan, TokenLoader
from tokenstore.foreign import ExportOptions, export_store

EOS, VOCABULARY, LENGTH = 50_256, 50_257, 16
Documents = list[np.ndarray]


def make_documents() -> Documents:
    """600 documents; all their tokens are a multiple of LENGTH."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 200, 600)
    lengths[-1] += -int(lengths.sum() + 600) % LENGTH
    return [np.append(rng.integers(0, 50_000, length), EOS) for length in lengths]


def check(found: list[list[int]], documents: Documents, what: str) -> None:
    """Fail unless every document has the same tokens."""
    assert len(found) == len(documents), f"{what}: {len(found)} documents instead of {len(documents)}"
    for number, (mine, theirs) in enumerate(zip(found, documents, strict=True)):
        assert mine == theirs.tolist(), f"{what}: document {number} differs"


def adopted(folder: Path, documents: Documents, *files: Path, **options: object) -> Path:
    """Adopt files and compare all documents. Returns the store."""
    result = adopt(folder / "store", *files, **{"vocab_size": VOCABULARY, "eos_id": EOS, **options})
    assert result.num_copied == 0, "a token file was copied"
    check(documents_of(result.path), documents, "adopted")
    return result.path


def exported(folder: Path, store: Path, to: str, **options: object) -> list[Path]:
    """Export a store."""
    shutil.rmtree(folder / "export", ignore_errors=True)
    return list(export_store(ExportOptions(store, to, folder / "export", **options)).files)


def megatron_files(folder: Path, documents: Documents) -> Iterator[str]:
    """Megatron's builder -> adopt; export -> Megatron's reader."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    for dtype, multimodal in ((np.uint16, False), (np.int32, False), (np.uint16, True)):
        prefix = folder / f"x_{dtype.__name__}_{multimodal}"
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
        for number, document in enumerate(documents):
            for piece in np.array_split(document, 1 + (number % 3 if document.size > 3 else 0)):
                builder.add_item(torch.tensor(piece), 0)
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
        shutil.rmtree(folder / "store", ignore_errors=True)
        store = adopted(folder, documents, prefix)
        (file,) = exported(folder, store, "megatron")
        reader = IndexedDataset(str(file.with_suffix("")))
        check([reader[i].tolist() for i in range(len(reader))], documents, "exported")
        assert reader.document_indices.tolist() == list(range(len(documents) + 1))
        yield f"{dtype.__name__}{', multimodal' if multimodal else ''}: {len(documents)} documents equal in both directions"


def megatron_epochs(folder: Path, documents: Documents) -> Iterator[str]:
    """Megatron's GPTDataset over an export, and a plan over the store, have the same tokens in an epoch."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    from tests.support.foreign.files import dolma

    store = adopted(folder, documents, dolma(folder / "x.npy", [document.tolist() for document in documents]))
    (file,) = exported(folder, store, "megatron")

    class Tokenizer:
        vocab_size, eod, pad, unique_identifiers = VOCABULARY, EOS, EOS, {"name": "none"}

    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        tokenizer=Tokenizer(),
        split="1,0,0",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        add_extra_token_to_sequence=False,
        path_to_cache=str(folder / "cache"),
    )
    config.mid_level_dataset_surplus = 0
    total = sum(document.size for document in documents)
    low = IndexedDataset(str(file.with_suffix("")))
    theirs = GPTDataset(low, str(file.with_suffix("")), np.arange(len(low)), total // LENGTH, Split.train, config)
    assert len(theirs) == total // LENGTH
    counted = Counter(np.concatenate([theirs[i]["tokens"].numpy() for i in range(len(theirs))]).tolist())
    plan = Plan.of(str(store), LENGTH, 1, packing="concat", cross_document_targets=True)
    loader = TokenLoader(plan, rank=0, world_size=1)
    mine = Counter(np.concatenate([next(loader)["input_ids"].numpy()[0] for _ in range(total // LENGTH)]).tolist())
    assert counted == mine == Counter(np.concatenate(documents).tolist()), "the tokens of an epoch differ"
    yield f"an epoch of GPTDataset and one of the plan hold the same {total:,} tokens"


def datatrove_files(folder: Path, documents: Documents) -> Iterator[str]:
    """Datatrove's writer and merger -> adopt; export -> datatrove's reader of indexes and its torch dataset."""
    from datatrove.pipeline.tokens.merger import DocumentTokenizerMerger, load_doc_ends
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile
    from datatrove.utils.dataset import DatatroveFileDataset

    for size in (2, 4):
        for old in ("store", f"raw{size}", f"merged{size}"):
            shutil.rmtree(folder / old, ignore_errors=True)
        options = {"tokenizer_name_or_path": "gpt2", "token_size": size, "save_final_metadata": True}
        written = TokenizedFile(str(folder / f"raw{size}"), "00000_x.ds", save_loss_metadata=size == 2, **options)
        for document in documents:
            written.write(document.tolist(), np.ones(document.size) if size == 2 else None)
        written.close()
        store = adopted(folder, documents, folder / f"raw{size}", format="datatrove")
        (file,) = exported(folder, store, "datatrove")
        ends = load_doc_ends(io.BytesIO(file.with_name(file.name + ".index").read_bytes()))
        tokens = np.fromfile(file, f"<u{size}")
        check([part.tolist() for part in np.split(tokens, ends.astype(int)[:-1])], documents, "exported")
        rows = DatatroveFileDataset(str(file), LENGTH - 1, token_size=size)
        assert np.concatenate([rows[i]["input_ids"] for i in range(len(rows))]).tolist() == tokens.tolist()
        yield f"{8 * size} bits: {len(documents)} documents equal in both directions"
    DocumentTokenizerMerger(
        str(folder / "raw2"), str(folder / "merged2"), "merged", shuffle_chunk_size=64, seed=1, progress=False
    ).run()
    result = adopt(folder / "chunks", folder / "merged2", vocab_size=VOCABULARY, eos_id=EOS, cut="both")
    whole = {tuple(document.tolist()) for document in documents}
    found = documents_of(result.path)
    same = sum(tuple(document) in whole for document in found)
    assert same > 0
    assert Counter(np.concatenate(found).tolist()) <= Counter(np.concatenate(documents).tolist())
    yield f"shuffled in chunks: {len(found)} parts, {same} of them whole documents, the others cut by a chunk"


def dolma_files(folder: Path, documents: Documents) -> Iterator[str]:
    """Dolma's writer -> adopt."""
    from dolma.tokenizer.data_types import TokenizerOutput
    from dolma.tokenizer.memmap_writer import MemmapWriter

    for dtype in ("uint16", "uint32"):
        shutil.rmtree(folder / "store", ignore_errors=True)
        with MemmapWriter(str(folder / dtype), np.dtype(dtype), max_tokens=1 << 20) as writer:
            for number, document in enumerate(documents):
                tokens = document.tolist()
                assert writer.write(TokenizerOutput.from_tokens(f"id-{number}", "a.jsonl", number + 1, tokens))
        adopted(folder, documents, folder / f"{dtype}.npy")
        yield f"{dtype}: {len(documents)} documents equal"


def olmo_files(folder: Path, documents: Documents) -> Iterator[str]:
    """Export to Dolma -> OLMo-core's reader, by rows and by a scan for the end-of-text token."""
    from olmo_core.data.utils import iter_document_indices, load_array_slice

    from tests.support.foreign.files import megatron

    truncated = [
        document[:-1] if number % 50 == 7 and document.size > 1 else document
        for number, document in enumerate(documents)
    ]
    truncated[-1] = truncated[-1][:-1]
    store = adopted(folder, truncated, megatron(folder / "x", [document.tolist() for document in truncated]))
    (file,) = exported(folder, store, "dolma")
    places = list(iter_document_indices(str(file)))
    check([load_array_slice(str(file), a, b, np.uint16).tolist() for a, b in places], truncated, "exported")
    notes: list[str] = []
    adopt(folder / "again", file, vocab_size=VOCABULARY, eos_id=EOS, note=notes.append)
    scanned = list(iter_document_indices(str(file), eos_token_id=EOS, dtype=np.uint16, use_array_if_local=True))
    lost = sum(document.size for document in truncated) - scanned[-1][1]
    assert f"finds {len(scanned):,} and loses {lost:,} tokens" in notes[-1], notes
    yield f"{len(documents)} documents equal; a scan finds {len(scanned)} of them and loses {lost} tokens, as adopt says"


CHECKS: tuple[Callable[[Path, Documents], Iterator[str]], ...] = (
    megatron_files,
    megatron_epochs,
    datatrove_files,
    dolma_files,
    olmo_files,
)


def report(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run every check whose tool is installed. Returns 1 if one is not."""
    warnings.simplefilter("ignore")
    documents, missing = make_documents(), 0
    for each in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for line in each(Path(folder), documents):
                    report(f"{each.__name__:<16} {line}")
            except ImportError as error:
                missing += 1
                report(f"{each.__name__:<16} not run: {error}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
