"""Where `block_checksums.bin` has the checksums of each file, and how large it is (FMT-15)."""

from tokenstore.format.layout import CHECKSUM_BLOCK, mask_of
from tokenstore.format.manifest import Manifest


def num_blocks(num_bytes: int) -> int:
    """Number of blocks of a file, of which the last may be shorter."""
    return -(-num_bytes // CHECKSUM_BLOCK)


def checksummed_files(manifest: Manifest) -> list[tuple[str, int]]:
    """(name, number of blocks) of each file that has block checksums, in their order: each shard, and then its mask."""
    files = []
    for shard in manifest.shards:
        files.append((shard.file, num_blocks(shard.num_bytes)))
        if manifest.has_masks:
            name = mask_of(shard.file)
            files.append((name, num_blocks(manifest.files[name].num_bytes)))
    return files


def block_checksums_bytes(manifest: Manifest) -> int:
    """Size of `block_checksums.bin` in bytes."""
    return 8 * sum(count for _, count in checksummed_files(manifest))
