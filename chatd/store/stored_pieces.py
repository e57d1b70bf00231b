"""Reading back what was streamed, from any piece on."""

from sqlalchemy import Connection, select

from chatd.ids import ResponseId
from chatd.store.records import StoredPiece
from chatd.store.schema import pieces, responses, unpack_ids


def pieces_after(conn: Connection, response_id: ResponseId, seq: int) -> list[StoredPiece]:
    """Everything after piece ``seq``, as it lies in rows; none for an unknown or deleted response."""
    owner = select(responses.c.seq).where(responses.c.id == response_id).scalar_subquery()
    query = select(pieces).where(pieces.c.response_seq == owner, pieces.c.seq > seq)
    rows = conn.execute(query.order_by(pieces.c.from_seq))
    stored = (StoredPiece(row.from_seq, row.seq, row.text, unpack_ids(row.piece_ends)) for row in rows)
    return [cut_after(piece, seq) for piece in stored]


def cut_after(piece: StoredPiece, seq: int) -> StoredPiece:
    """What of ``piece`` comes after ``seq``, which is before its last one."""
    done = seq - piece.from_seq + 1
    if done <= 0:
        return piece
    start = piece.piece_ends[done - 1]
    ends = tuple(end - start for end in piece.piece_ends[done:])
    return StoredPiece(seq + 1, piece.seq, piece.text[start:], ends)
