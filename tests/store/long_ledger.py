"""A ledger as years of use leave it, made in seconds: rows as the store writes them, and their roll-ups.

No text, no pieces, no messages: what `chatd report` reads, and nothing else.
"""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from chatd.resources import migrations_dir
from chatd.store.books import to_row
from chatd.store.connect import make_engine
from chatd.store.migrate import migrate
from chatd.store.prices import PriceBook
from chatd.store.rollups import DAY_US, rebuild
from chatd.store.store import DATABASE_NAME

FIRST_DAY = 20_400
DAYS = 400
MODELS = ("small-1b", "middle-8b", "large-70b")
NAMESPACES = 20
STEP = 20_000


def make_long_ledger(data_dir: Path, rows: int, seed: int = 1) -> Path:
    """A data folder with ``rows`` ended responses in sessions of 1 to 20 turns."""
    database = data_dir / DATABASE_NAME
    migrate(database, migrations_dir())
    with closing(sqlite3.connect(database)) as connection, connection:
        book = to_row(PriceBook())
        connection.execute(_insert("price_books", book), list(book.values()))
        connection.execute("INSERT INTO engine_runs VALUES (1, 'ended', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)")
        made = _rows(rows, random.Random(seed))
        statement = ""
        while some := list(islice(made, STEP)):
            statement = statement or _insert("responses", some[0])
            connection.executemany(statement, [tuple(row.values()) for row in some])
    engine = make_engine(database, begin="BEGIN IMMEDIATE", connections=1)
    with engine.connect() as writing, writing.begin():
        rebuild(writing)
    engine.dispose()
    return data_dir


def _insert(table: str, row: dict[str, Any]) -> str:
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' for _ in row)})"


def _rows(count: int, dice: random.Random) -> Iterator[dict[str, Any]]:
    made = 0
    while made < count:
        session = f"{dice.getrandbits(128):032x}"
        at = (FIRST_DAY + dice.randrange(DAYS)) * DAY_US + dice.randrange(DAY_US)
        model = dice.choice(MODELS)
        namespace = f"user-{dice.randrange(NAMESPACES):02}"
        prompt = dice.randrange(20, 2000)
        branch = session
        for turn in range(min(dice.randrange(1, 21), count - made)):
            if turn and dice.random() < 0.05:
                branch = f"{dice.getrandbits(128):032x}"
            yield _row(made, session, branch, namespace, model, at, prompt, turn, dice)
            made += 1
            prompt += dice.randrange(20, 300)
            at += dice.randrange(60_000_000)


def _row(
    seq: int,
    session: str,
    branch: str,
    namespace: str,
    model: str,
    at: int,
    prompt: int,
    turn: int,
    dice: random.Random,
) -> dict[str, Any]:
    hit = dice.randrange(prompt // 2, prompt) if turn else dice.randrange(8)
    disk = dice.randrange(hit) if hit and dice.random() < 0.2 else 0
    output = dice.randrange(1, 600)
    ending = dice.choices(("completed", "incomplete", "cancelled", "failed"), (90, 4, 5, 1))[0]
    reason = {"completed": "end", "incomplete": "length"}.get(ending, ending)
    cost = PriceBook().cost(gpu_hit=hit - disk, disk_hit=disk, computed=prompt - hit, output=output)
    queue = dice.expovariate(1 / 5)
    ttft = queue + 20 + (prompt - hit) * dice.uniform(0.4, 0.6)
    params = '{"temperature": 0.3, "top_p": 1.0, "top_k": 0, "seed": 1234567890, "max_tokens": 1024}'
    return {
        "id": f"{dice.getrandbits(128):032x}",
        "run_id": 1,
        "namespace": namespace,
        "request_hash": bytes(32),
        "conversation_id": session,
        "user_message_id": f"u{seq}",
        "message_id": f"m{seq}",
        "base_len": 0,
        "model": model,
        "params_json": params * 3,
        "status": ending,
        "finish_reason": reason,
        "error_code": "",
        "error": "",
        "prompt_len": prompt,
        "prompt_tokens": prompt,
        "gpu_hit": hit - disk,
        "disk_hit": disk,
        "computed": prompt - hit,
        "output_tokens": output,
        "delivered": output,
        "last_seq": output,
        "preemptions": int(dice.random() < 0.01),
        "recomputed": 0,
        "queue_ms": queue,
        "ttft_ms": ttft,
        "tpot_ms": dice.uniform(10, 40),
        "tokens_per_s": 40.0,
        "total_ms": ttft + 25.0 * output,
        "opened_at": at,
        "admitted_at": at,
        "ended_at": at + round(1000 * (ttft + 25.0 * output)),
        "price_version": cost.price_version,
        "gpu_hit_nano": cost.gpu_hit_nano,
        "disk_hit_nano": cost.disk_hit_nano,
        "computed_nano": cost.computed_nano,
        "output_nano": cost.output_nano,
        "without_cache_nano": cost.without_cache_nano,
        "branch_id": branch,
    }
