"""Layer 4: token files of other tools: a store over them (`adopt_store`), and a store as such files (`export_store`).

| format | tokens | what divides documents |
|---|---|---|
| megatron | `.bin`, without a header | `.idx`: sequences and documents |
| datatrove | `.ds`, without a header | `.ds.index`: ends |
| dolma | `.npy`, without a header in spite of its name | `.csv.gz`: a row per document |
| nanogpt | `.bin`, without a header | the end-of-text token after each document |
| llmc | `.bin`, after 1,024 bytes | the end-of-text token before each document |

formats     what belongs to which format; finds the token files of the arguments
megatron, datatrove, dolma, headerless, llmc   one format each: what its files say
reading     reads foreign files at positions, and refuses them
survey      one pass over an index, before any token is read
prepare     all decisions, before any token is read
cuts, scan  one pass over the tokens
files_writer, join, adoption   the files of the store
compare     an adopted store against the foreign index, for `verify`
notes       what an adoption found, as lines for the user
options     the options of both directions
adopt       the function that `tokenstore adopt` calls
parts, export_checks, export   the other direction; export has the function that `tokenstore export` calls
"""

from tokenstore.foreign.adopt import AdoptResult, adopt_store
from tokenstore.foreign.compare import verify_adopted
from tokenstore.foreign.export import ExportResult, export_store
from tokenstore.foreign.options import AdoptOptions, ExportOptions

__all__ = [
    "AdoptOptions",
    "AdoptResult",
    "ExportOptions",
    "ExportResult",
    "adopt_store",
    "export_store",
    "verify_adopted",
]
