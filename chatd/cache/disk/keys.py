"""Keys of blocks: chained hashes under a secret of the data folder.

Without the secret nobody can tell from a key, or from a file, whether some text was ever seen here.
"""

import os
from hashlib import blake2b
from pathlib import Path

from chatd.cache.block_tier import BLOCK_LEN, Block
from chatd.cache.disk.files import Files, read_file, replace_file
from chatd.cache.disk.record import IDS_BYTES, KEY_BYTES, NO_PARENT, checksum
from chatd.cache.radix_node import SHARED
from chatd.ids import Namespace

SECRET_NAME = "secret"
_SECRET_BYTES = 32


class Keys:
    """Keys for the blocks of one model and layout: ``fingerprint`` is any bytes that stand for these."""

    def __init__(self, secret: bytes, fingerprint: bytes) -> None:
        self._secret = secret
        self.fingerprint = blake2b(fingerprint, digest_size=KEY_BYTES, key=secret, person=b"model").digest()
        """What records have for ``fingerprint``: it depends on the secret too."""
        self._state = blake2b(digest_size=KEY_BYTES, key=secret, person=b"block")

    def key(self, fingerprint: bytes, namespace: Namespace, parent: bytes, ids: bytes) -> bytes:
        """``fingerprint`` as records have it; ``parent`` empty for a path's first block."""
        name = namespace.encode()
        state = self._state.copy()
        state.update(fingerprint + (parent or NO_PARENT) + len(name).to_bytes(4, "little") + name + ids)
        return state.digest()

    def chain(self, packed_ids: bytes, namespace: Namespace, shared_len: int) -> list[Block]:
        """See `BlockTier.chain`."""
        blocks: list[Block] = []
        parent = b""
        for end in range(IDS_BYTES, len(packed_ids) + 1, IDS_BYTES):
            ids = packed_ids[end - IDS_BYTES : end]
            owner = SHARED if end // IDS_BYTES * BLOCK_LEN <= shared_len else namespace
            key = self.key(self.fingerprint, owner, parent, ids)
            blocks.append(Block(key, parent, owner, ids))
            parent = key
        return blocks

    def under(self, fingerprint: bytes, path: list[Block]) -> list[bytes]:
        """The keys that a path from the root has under another model's fingerprint."""
        keys: list[bytes] = []
        for block in path:
            parent = keys[-1] if keys else b""
            keys.append(self.key(fingerprint, block.namespace, parent, block.ids))
        return keys


def load_secret(files: Files, folder: Path) -> tuple[bytes, bool]:
    """The folder's secret, and whether it was just made: then no record in the folder can ever be found.

    Raises `OSError` if it can be neither read nor made.
    """
    data = read_file(files, folder / SECRET_NAME, limit=4096)
    if data is not None:
        secret, mark = data[:_SECRET_BYTES], data[_SECRET_BYTES:]
        if len(secret) == _SECRET_BYTES and checksum(secret) == mark:
            return secret, False
    secret = os.urandom(_SECRET_BYTES)
    replace_file(files, folder / SECRET_NAME, secret + checksum(secret))
    return secret, True
