"""`tokenstore build`, in a clone `python -m tools.build_store`.

The options are the fields of `BuildOptions`, with the same names, types, defaults and texts. Only what the command line needs
besides is here: groups, short names, and options that have another unit or default.
"""

import multiprocessing
import operator
import time
from collections.abc import Callable
from dataclasses import asdict, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from cyclopts import Group, Parameter, Token, convert

from tokenstore.builder import BuildOptions, BuildProgress, BuildResult, build_store, build_task, preview_build
from tokenstore.builder.result import Note, Progress
from tokenstore.builder.schedule import Task, parse_task
from tokenstore.commands.progress_bar import meter
from tokenstore.commands.screen import print_note, write_json
from tokenstore.commands.show_build import print_preview, print_result, print_task
from tokenstore.errors import ConfigError
from tokenstore.store.files import environment
from tokenstore.store.remote.location import is_url

_Made = TypeVar("_Made")


def _mebibytes(_: type, tokens: tuple[Token, ...]) -> int:
    """The number of bytes in as many MiB as are given."""
    mebibytes: int = convert(int, tokens)
    if mebibytes < 1:
        raise ValueError(f"expected 1 or more MiB, found {mebibytes}")
    return mebibytes << 20


def _gibibytes(_: type, tokens: tuple[Token, ...]) -> int:
    """The number of bytes in as many GiB as are given."""
    gibibytes: int = convert(int, tokens)
    return gibibytes << 30


def _place(_: type, tokens: tuple[Token, ...]) -> Path | str:
    """A path, or the text of a URL, which is no path."""
    text = tokens[0].value
    return text if is_url(text) else Path(text)


_GROUPS = {  # the options of each group of --help; those in none are at the top
    "Records": "records text text_field stdin_format text_endings tokens_field mask_field id_field keep origins",
    "Conversations (--records chat)": "chat_template chat_date train_on",
    "Stores": "partition_by split shuffle_documents",
    "Tokens": "vocab_size eos eos_token document_start special_text add_special_tokens engine pattern special_tokens",
    "Selecting documents": "filter map keep_empty min_tokens max_tokens dedup sample max_total_tokens",
    "Bad records": "max_record_bytes max_bad",
    "Running": "workers overwrite break_lock dry_run as_json",
    "Running as many processes": "task finish executor group_bytes input_identity scratch",
}
_GROUP = {name: Group(group, sort_key=i) for i, (group, names) in enumerate(_GROUPS.items()) for name in names.split()}
STANDARD_INPUT_PATH = "/dev/stdin"
_FLAG = Parameter(negative=(), show_default=False)
_LIST = Parameter(consume_multiple=True, negative=(), show_default=False)


def _names(_: type, tokens: tuple[Token, ...]) -> tuple[str, ...]:
    """The names in `a,b c`: separated by commas, spaces or both."""
    return tuple(name for token in tokens for name in token.value.split(",") if name)


_NAMES = Parameter(consume_multiple=True, negative=(), show_default=False, converter=_names)
_IN_MEBIBYTES = Parameter(converter=_mebibytes, show_default=lambda num_bytes: num_bytes >> 20)
_SPECIAL: dict[str, tuple[Parameter, ...]] = {
    "output": (Parameter(alias="-o", converter=_place),),
    "eos": (Parameter(name="--add-eos", negative="--no-eos"),),
    "eos_token": (Parameter(name="--eos"),),
    "text_endings": (_LIST,),
    "keep": (_NAMES,),
    "special_tokens": (_LIST,),
    "add_special_tokens": (_FLAG,),
    "keep_empty": (_FLAG,),
    "overwrite": (_FLAG,),
    "break_lock": (_FLAG,),
    "max_record_bytes": (
        _IN_MEBIBYTES,
        Parameter(name="--max-record-size", help="Length in MiB above which a record is bad."),
    ),
    "shard_bytes": (_IN_MEBIBYTES, Parameter(name="--shard-size", help="Target size of a shard file, in MiB.")),
    "group_bytes": (
        Parameter(
            converter=_gibibytes,
            name="--group-size",
            show_default=lambda num_bytes: num_bytes >> 30,
            help="Size of a group in GiB of input: its tokens are written once, in their final form, by the process that"
            " finishes it. For very large builds; 0 for none. The store's bytes depend on it.",
        ),
    ),
    "workers": (Parameter(show_default=lambda _: "one per core"),),
}


def _arguments() -> type:
    """A dataclass with the fields of BuildOptions but `inputs`, annotated for the command line.

    It checks nothing: the errors of BuildOptions are those of a function, not of a command line.
    """
    types = get_type_hints(BuildOptions)
    made: list[tuple[str, Any, Any]] = []
    for each in fields(BuildOptions):
        if each.name != "inputs":
            default = multiprocessing.cpu_count() if each.name == "workers" else each.default
            grouped = Parameter(group=_GROUP[each.name]) if each.name in _GROUP else Parameter()
            annotated = operator.getitem(Annotated, (types[each.name], grouped, *_SPECIAL.get(each.name, ())))
            made.append((each.name, annotated, field(default=default)))
    return make_dataclass("BuildArguments", made, namespace={"__doc__": BuildOptions.__doc__, "__module__": __name__})


if TYPE_CHECKING:
    BuildArguments = BuildOptions
else:
    BuildArguments = _arguments()


def build(
    inputs: Annotated[list[str], Parameter(name="INPUTS", negative=())],
    /,
    *,
    options: Annotated[BuildArguments, Parameter(name="*")],
    task: Annotated[str | None, Parameter(group=_GROUP["task"])] = None,
    finish: Annotated[bool, _FLAG, Parameter(group=_GROUP["finish"])] = False,
    dry_run: Annotated[bool, _FLAG, Parameter(group=_GROUP["dry_run"])] = False,
    as_json: Annotated[bool, _FLAG, Parameter(name="--json", group=_GROUP["as_json"])] = False,
) -> int:
    """Build a token store from texts, tables or conversations.

    Inputs are .txt files (a document each), .jsonl, .json, .csv and .tsv files (a document per line, item or row) and .tar
    archives of texts, all of them also as .gz, .zst, .bz2 or .xz; .parquet and .arrow files, also folders written by Hugging Face
    save_to_disk; folders, for all such files below them; and glob patterns. All of these can be URLs of object storage. Documents
    are stored in the order of the arguments. Within a folder or pattern, files are sorted by path.

    A store fixes neither the sequence length nor the order of training: the plan does.

    A build may be killed at any time. It leaves no store, and the same command resumes it. If the store is already complete,
    the same command changes nothing; it compares the inputs with those of the store by name, size and content. If they exceed
    1 GiB in total, their sizes, inodes and times are kept in OUTPUT.tokenstore/inputs.json, and only files that differ in one of
    these are read again. The folder OUTPUT.tokenstore also holds unfinished work and the list of bad records. If a folder of
    that name exists that tokenstore did not make, the build is refused.

    **Examples:**

    ```text
    tokenstore build data/*.jsonl.zst --output stores/web --tokenizer tokenizer.json --workers 8
    tokenstore build src/ --output stores/code --tokenizer bytes --text-endings .py .md
    tokenstore build web.parquet -o stores/web --tokenizer gpt2.tiktoken --pattern gpt2 --dedup exact
    tokenstore build web.jsonl -o stores/web --tokenizer tokenizer.json --split train=0.99,validation=0.01
    tokenstore build web.jsonl -o stores/web --tokenizer Qwen3-8B/tokenizer.json --eos '<|endoftext|>'
    tokenstore build chats.jsonl -o stores/sft --tokenizer Qwen3-8B/tokenizer.json --records chat
    tokenstore build chats.jsonl -o stores/sft --tokenizer tokenizer.json --records chat --chat-template llama3
    zcat crawl/*.gz | my-filter | tokenstore build - -o stores/web --tokenizer tokenizer.json
    tokenstore build web.jsonl -o stores/web --tokenizer tokenizer.json --keep meta.url,meta.score
    tokenstore build web.jsonl -o stores/web --tokenizer tokenizer.json --text '{title}\\n\\n{body}' --sample 1%
    tokenstore build web.jsonl -o stores/by-language --tokenizer tokenizer.json --partition-by meta.lang
    tokenstore build crawl/ -o stores/crawl --tokenizer tokenizer.json --shuffle-documents 1 --max-total-tokens 10_000_000_000
    tokenstore build web.jsonl -o stores/web --tokenizer tokenizer.json --dry-run
    tokenstore build data/ -o stores/web --tokenizer tokenizer.json --task 3/8
    tokenstore build data/ -o stores/web --tokenizer tokenizer.json --finish
    ```

    Parameters
    ----------
    inputs
        Files, folders and glob patterns; `-` is standard input. A quoted pattern is expanded by this command, in sorted order.
    options
        See `BuildOptions`.
    task
        Make only the share i of n of the work, `i/n` with 0 <= i < n, for example as one job of an array. `auto` takes both from
        Slurm's environment, `auto/n` the number i from that of an indexed Kubernetes Job. Tasks need no order and no lock; to
        resume or repeat one, run it again. Exit code 0 means that its share is done.
    finish
        After all tasks: check that no part is missing, and write the store.
    dry_run
        Write nothing. Show the inputs, the number of tokens to expect, estimated with its uncertainty from a sample of the
        inputs, and the disk space needed. Exit code 3 if all records of the sample are bad.
    as_json
        Print the result as one JSON object.
    """
    chosen = BuildOptions(**{**vars(options), "inputs": with_standard_input(inputs)})
    if task is not None and finish:
        raise ConfigError("task: expected --task or --finish, found both; run --finish once, after all tasks")
    if dry_run:
        print_preview(preview_build(chosen), as_json)
        return 0
    if task is not None:
        return _run_task(chosen, parse_task(task, environment), as_json)
    return run_build("building", as_json, lambda progress, note: build_store(chosen, progress, note, finish))


def _run_task(options: BuildOptions, task: Task, as_json: bool) -> int:
    result, seconds = _with_progress(
        f"task {task}", as_json, lambda progress, note: build_task(options, task, progress, note)
    )
    if as_json:
        write_json({**asdict(result), "seconds": round(seconds, 3)})
    else:
        print_task(result, seconds)
    return 0


def with_standard_input(inputs: list[str]) -> tuple[str, ...]:
    """The inputs, with `-` for the path of standard input."""
    return tuple("-" if each == STANDARD_INPUT_PATH else each for each in inputs)


def run_build(label: str, as_json: bool, make: Callable[[Progress, Note], BuildResult]) -> int:
    """Run a build or append with a progress bar, its notes on standard error, and print its result; return the exit code."""
    result, seconds = _with_progress(label, as_json, make)
    print_outcome(result, seconds, as_json)
    return 0


def print_outcome(result: BuildResult, seconds: float, as_json: bool) -> None:
    """Print a finished store, as text or as JSON."""
    if as_json:
        write_json({**asdict(result), "seconds": round(seconds, 3)})
    else:
        print_result(result, seconds)


def _with_progress(label: str, quiet: bool, make: Callable[[Progress, Note], _Made]) -> tuple[_Made, float]:
    """What `make` returns and its seconds, with a progress bar and its notes on standard error."""
    start = time.monotonic()
    with meter(label, quiet=quiet) as shown:

        def progress(at: BuildProgress) -> None:
            shown.show(at.num_bytes, at.total_bytes, (at.num_tokens, " tokens"), (at.num_bytes, "B of input"))

        result = make(progress, print_note)
    return result, time.monotonic() - start
