"""What a record's header holds, and how it is known to be whole.

A record is a header of 512 bytes and a body: the raw bytes of a block's pages. Each has its own checksum,
and the header's covers the body's: so headers alone give the index, a body can be told from another
record's, and neither can be damaged unseen.
"""

import struct
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.disk.files import Bytes
from chatd.cache.radix_node import ID_BYTES
from chatd.ids import Namespace

FORMAT_VERSION = 1
"""Part of every header and of the model's fingerprint. Files of any other version are removed at start."""

MAGIC = b"chatdKV\n"
HEADER_BYTES = 512
KEY_BYTES = 16
SUM_BYTES = 16
IDS_BYTES = BLOCK_LEN * ID_BYTES
NO_PARENT = bytes(KEY_BYTES)
DEAD_HEADER = bytes(HEADER_BYTES)
"""What a removed record's header is overwritten with: its token ids are gone from the file as well."""

_NAMESPACE_BYTES = 126
_FIELDS = struct.Struct(f"<8sIIQd16s16s16sH{_NAMESPACE_BYTES}s{IDS_BYTES}s16s")
_GAP = HEADER_BYTES - SUM_BYTES - _FIELDS.size


class Header(NamedTuple):
    """``fingerprint`` is of model and layout, ``written_at`` seconds of the wall clock."""

    fingerprint: bytes
    key: bytes
    parent: bytes
    namespace: Namespace
    ids: bytes
    body_len: int
    body_sum: bytes
    written_at: float

    def pack(self) -> bytes:
        """512 bytes. Lengths of the parts are checked: a record that cannot be read must not be written."""
        name = self.namespace.encode()
        if not (len(self.key) == KEY_BYTES == len(self.parent or NO_PARENT) == len(self.fingerprint)):
            raise ValueError("keys and fingerprints are 16 bytes")
        if len(self.ids) != IDS_BYTES or len(name) > _NAMESPACE_BYTES:
            raise ValueError(
                f"a block has {BLOCK_LEN} ids; a stored namespace {_NAMESPACE_BYTES} bytes at most"
            )
        fields = _FIELDS.pack(
            MAGIC,
            FORMAT_VERSION,
            BLOCK_LEN,
            self.body_len,
            self.written_at,
            self.fingerprint,
            self.key,
            self.parent or NO_PARENT,
            len(name),
            name,
            self.ids,
            self.body_sum,
        )
        padded = fields + bytes(_GAP)
        return padded + checksum(padded)


def unpack(data: Bytes) -> Header | None:
    """The header, or None if these bytes are not a whole one of this format."""
    if len(data) != HEADER_BYTES or checksum(data[:-SUM_BYTES]) != data[-SUM_BYTES:]:
        return None
    magic, version, length, body_len, written_at, fingerprint, key, parent, size, name, ids, body_sum = (
        _FIELDS.unpack_from(data)
    )
    if magic != MAGIC or version != FORMAT_VERSION or length != BLOCK_LEN or size > _NAMESPACE_BYTES:
        return None
    namespace = Namespace(name[:size].decode())
    parent = b"" if parent == NO_PARENT else parent
    return Header(fingerprint, key, parent, namespace, ids, body_len, body_sum, written_at)


def stored_namespace(namespace: Namespace) -> Namespace:
    """The name that headers have for it: itself, or a hash of it if it is longer than they have room for."""
    name = namespace.encode()
    if len(name) <= _NAMESPACE_BYTES:
        return namespace
    return Namespace("#" + blake2b(name, digest_size=24).hexdigest())


def checksum(data: Bytes) -> bytes:
    """xxh3, 128 bits: 1.47 MB take 0.07 ms. It finds damage; it does not keep out forgers."""
    return _xxh3()(data)


@cache
def _xxh3() -> Callable[[Bytes], bytes]:
    from xxhash import xxh3_128_digest  # here: the engine imports without it, on a bare GPU machine

    return xxh3_128_digest
