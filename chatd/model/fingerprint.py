"""What stored KV depends on, as 16 bytes: any change of it gives others, and so no hits on disk.

All bytes of the weights' files go into it, with the types that their headers give. Of SmolLM2 (98 MB) that
takes 20 ms; what was hashed is remembered by device, inode, size and time of change.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.disk.record import FORMAT_VERSION
from chatd.model.config import ModelConfig
from chatd.model.load import ModelFile

MEMORY_NAME = "weights.json"
_MOST_REMEMBERED = 64
_CHUNK_BYTES = 4 << 20
_SETTLED_NS = 2_000_000_000
"""A file changed less than this before it was hashed may change again under the same time stamp."""

_PLANES = "[layer, k/v, kv head, slot, head dim]"


@dataclass(frozen=True, slots=True)
class KVForm:
    """In what form KV is computed and kept. ``weights`` is `WeightForm.name`; ``record_bytes`` is a page of
    all layers, scales included.
    """

    weights: str
    kv: torch.dtype
    page_size: int
    record_bytes: int


def kv_fingerprint(file: ModelFile, tokenizer: str, form: KVForm, folder: Path) -> bytes:
    """16 bytes. ``tokenizer`` is `Tokenizer.fingerprint`; ``folder`` is where hashes are remembered.

    Raises `OSError` if the weights cannot be read; it does not matter if nothing can be remembered.
    """
    paths = sorted({path for _, path, _, _ in file.source.extents()})
    return combine(file.config, weights_digest(paths, folder / MEMORY_NAME), tokenizer, form)


def combine(config: ModelConfig, weights: bytes, tokenizer: str, form: KVForm) -> bytes:
    """The model's name does not matter; its configuration, with the rotary settings, does."""
    parts = (
        FORMAT_VERSION,
        BLOCK_LEN,
        _PLANES,
        replace(config, name=""),
        weights.hex(),
        tokenizer,
        form.weights,
        str(form.kv),
        form.page_size,
        form.record_bytes,
    )
    return blake2b(repr(parts).encode(), digest_size=16, person=b"kv").digest()


def weights_digest(paths: Iterable[Path], memory: Path) -> bytes:
    """Of the bytes of all files, by their names' order. ``memory`` is a file that may not be there yet."""
    known = _recall(memory)
    digests: dict[str, str] = {}
    whole = blake2b(digest_size=16)
    for path in paths:
        stamp, settled = _stamp(path)
        digest = known.get(stamp) or _hash(path)
        whole.update(bytes.fromhex(digest))
        if settled and _stamp(path)[0] == stamp:
            digests[stamp] = digest
    if not digests.items() <= known.items():
        _remember(memory, {**known, **digests})
    return whole.digest()


def _hash(path: Path) -> str:
    from xxhash import xxh3_128  # here: this package is imported without it, on a bare GPU machine

    state, chunk = xxh3_128(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(chunk):
            state.update(chunk[:count])
    return state.hexdigest()


def _stamp(path: Path) -> tuple[str, bool]:
    """What names a file's content, and whether it changed long enough ago to be trusted."""
    info = path.stat()
    settled = time.time_ns() - info.st_mtime_ns > _SETTLED_NS
    return f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}", settled


def _recall(memory: Path) -> dict[str, str]:
    """Hex digests by stamp; empty if the file is not there or not ours."""
    try:
        known = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {stamp: digest for stamp, digest in known.items() if _is_digest(digest)}


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef")


def _remember(memory: Path, digests: dict[str, str]) -> None:
    """The newest last. A reader sees the whole file or the one before."""
    kept = dict(list(digests.items())[-_MOST_REMEMBERED:])
    fresh = memory.with_name(memory.name + ".new")
    try:
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii"
        ) as file:
            json.dump(kept, file)
        fresh.replace(memory)
    except OSError:
        fresh.unlink(missing_ok=True)  # then the weights are hashed again next time
