"""WebSocket frames and upgrades as bytes, for what no client library would send."""

import base64
import os
import struct

from tests.e2e.processes import RawSocket, ToyProcess, port_of

TEXT, CONTINUATION = 1, 0
RSV1 = 0x40


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def upgrade(*headers: str) -> tuple[str, ...]:
    key = base64.b64encode(bytes(16)).decode()
    return (
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: chatd.v1",
        *headers,
    )


def frame(payload: bytes, opcode: int = TEXT, *, final: bool = True, rsv: int = 0) -> bytes:
    """One masked frame."""
    mask = os.urandom(4)
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + struct.pack("!H", size)
    else:
        length = b"\xff" + struct.pack("!Q", size)
    keys = (mask * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")
    return bytes([(0x80 if final else 0) | rsv | opcode]) + length + mask + masked


async def opened(server: ToyProcess, raw: RawSocket, *headers: str) -> bytes:
    """Upgrade; the answer's head."""
    host = f"Host: 127.0.0.1:{port_of(server)}"
    await raw.send("\r\n".join(["GET /ws HTTP/1.1", host, *upgrade(*headers), "", ""]).encode())
    head = await raw.until(lambda heard: b"\r\n\r\n" in heard)
    assert status_of(head) == 101
    return head.lower()
