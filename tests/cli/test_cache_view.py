"""The cache's figures as a person sees them."""

import io
from dataclasses import asdict
from typing import Any

from rich.console import Console

from chatd.cli import cache_stats_view, cache_view
from chatd.engine.messages import EngineCounters, EngineState

COUNTERS = EngineCounters(
    steps=9,
    prompt_tokens=1000,
    gpu_hit=500,
    disk_asked=500,
    disk_hit=128,
    computed=372,
    evicted_pages=7,
    spilled_blocks=1,
    spilled_bytes=1 << 20,
    restored_blocks=2,
    restored_bytes=2 << 20,
    damaged_blocks=1,
)
DISK: dict[str, Any] = {
    "blocks": 38,
    "foreign_blocks": 2,
    "pinned_blocks": 1,
    "nbytes": 256 << 20,
    "quota_bytes": 1 << 30,
    "read": {"jobs": 2, "bytes_per_s": float(1 << 30), "job_s": 0.002},
    "write": {"jobs": 0, "bytes_per_s": 0.0, "job_s": 0.0},
    "events": {"stored": 40, "damaged": 0},
    "failures": {"write ENOSPC": 3},
    "suspended": "ENOSPC",
    "fault": "",
}
NO_CHOICES = dict.fromkeys(
    ("load_ms_p50", "restore_ms_p50", "compute_ms_p50", "load_error_p50", "load_error_p95")
)


def stats(**changed: Any) -> dict[str, Any]:
    return {
        "live": True,
        "counters": asdict(COUNTERS),
        "state": asdict(EngineState(free_pages=40, evictable_pages=50, total_pages=100)),
        "disk": DISK,
        "causes": [{"cause": "evicted", "responses": 3, "computed": 300}],
        "choices": {"loaded": 0, "computed": 0, **NO_CHOICES},
        "predictions": {"made": 0, "exact": 0, "ttft_error_p50": None, "ttft_error_p95": None},
        "pins": 1,
        **changed,
    }


def shown(show: Any, found: dict[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_stats() -> None:
    text = shown(cache_stats_view.print_stats, stats())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "from memory 1,000 500 50 %" in lines
    assert "from disk 500 128 26 %" in lines
    assert "computed 372 37 %" in lines
    assert "memory 60 of 100 pages taken (60 %): 50 cached, 10 held; 7 made room for others" in lines
    assert any(line.startswith("written 1 block (1 MiB); 0 waiting") for line in lines)
    assert any(line.startswith("came back 2 blocks (2 MiB); 1 damaged") for line in lines)
    assert "disk 256 MiB of 1 GiB (25 %), 38 blocks, 2 of other models or formats, 1 pinned" in lines
    assert "speed read 1 GiB/s, 2.0 ms a block" in lines
    assert "records 40 stored" in lines
    assert "trouble 3 x write ENOSPC; writing is suspended: ENOSPC" in lines
    assert any(line.startswith("evicted 3 300 had KV in this run") for line in lines)
    assert "Predicted" not in text


def test_stats_of_choices_and_predictions() -> None:
    choices = {
        "loaded": 4,
        "computed": 2,
        "load_ms_p50": 3.0,
        "restore_ms_p50": 4.0,
        "compute_ms_p50": 90.0,
        "load_error_p50": 0.25,
        "load_error_p95": 0.5,
    }
    predictions = {"made": 10, "exact": 9, "ttft_error_p50": 0.1, "ttft_error_p95": 0.333}
    text = shown(cache_stats_view.print_stats, stats(choices=choices, predictions=predictions))
    assert "4 loaded, 2 computed" in text
    assert "loading 4.0 ms (p50); the estimate was off by 25 % (p50), 50 % (p95)" in text
    assert "9 exactly as predicted, by origin (90 %)" in text
    assert "off by 10 % (p50), 33 % (p95)" in text


def test_stats_without_anything() -> None:
    idle = stats(counters=asdict(EngineCounters()), disk=None, causes=[])
    assert "No answer was computed" in shown(cache_stats_view.print_stats, idle)
    assert "No server has this folder open" in shown(cache_stats_view.print_stats, idle | {"live": False})


def test_stats_fit_80_columns() -> None:
    lines = shown(cache_stats_view.print_stats, stats(disk=None), 80).splitlines()
    assert max(map(len, lines)) <= 140  # sentences may be longer: they are not wrapped
    assert all(len(line.rstrip()) <= 80 for line in lines if not line.startswith("  "))


def path(parent: int, start: int, tokens: int, head: str, namespace: str = "ann") -> dict[str, Any]:
    figures = {"parent": parent, "start": start, "tokens": tokens, "pages": tokens // 16, "locks": 0}
    return {"namespace": namespace, "head": head, "stored": tokens // 2, **figures}


def test_paths_as_a_tree() -> None:
    paths = [
        path(-1, 0, 64, "Shared prompt", ""),
        path(0, 64, 32, "[red]of\x1b[2J ann\nin\ttwo lines"),
        path(1, 96, 16, "x" * 200),
        path(1, 96, 32, "another turn"),
        path(3, 128, 32, "which is in the line above"),
        path(-1, 0, 48, "of bob", "bob"),
    ]
    disk = [
        {"namespace": "ann", "current": True, "blocks": 3, "nbytes": 3 << 20, "oldest": 0, "newest": 60},
        {"namespace": "", "current": False, "blocks": 1, "nbytes": 1 << 20, "oldest": 0, "newest": 60},
    ]
    text = shown(cache_view.print_paths, {"paths": paths, "disk": disk})
    assert "shared by all" in text
    assert "0–64 (4 pages, 50 % on disk) Shared prompt" in text
    assert "[red]of\ufffd[2J ann in two lines" in text
    assert "x" * 61 not in text
    order = [text.index(one) for one in ("ann\n", "64–96", "96–112", "96–160 (4 pages", "of bob")]
    assert order == sorted(order)
    assert "in the line above" not in text
    assert "shared by all (another model)" in text
    nothing = shown(cache_view.print_paths, {"paths": [], "disk": []})
    assert "Nothing is in memory." in nothing
    assert "Nothing is on disk." in nothing


def test_verified() -> None:
    whole = {"records": {"records": 3, "nbytes": 3 << 20, "damages": []}}
    assert "All is whole: 3 records, 3 MiB of KV read." in shown(cache_view.print_verified, whole)
    damage = {"key": "00", "namespace": "", "file": "1.seg", "slot": 4, "removed": True, "cause": "damaged"}
    unread = damage | {"removed": False, "cause": "EIO", "slot": 5}
    broken = {"records": {"records": 3, "nbytes": 3 << 20, "damages": [damage, unread]}}
    text = shown(cache_view.print_verified, broken)
    assert "2 of 3 records" in text
    assert "1.seg slot 4, of shared by all: damaged, removed" in text
    assert "1.seg slot 5, of shared by all: could not be read: EIO" in text


def test_replayed() -> None:
    differing = {"response_id": "r1", "position": 50, "stored": 7, "computed": 8, "distance": 0.1}
    replay = {
        "turns": 2,
        "left_out": 1,
        "tokens": 100,
        "exact": False,
        "backend": "reference/cpu",
        "formats": "weights=bfloat16 kv=bfloat16 page=16",
        "differing": [
            differing | {"allowed": 0.5, "is_wrong": False},
            differing | {"distance": 3.0, "allowed": 0.5, "is_wrong": True},
        ],
    }
    found = {"records": {"records": 0, "nbytes": 0, "damages": []}, "replay": replay}
    text = shown(cache_view.print_verified, found)
    assert "98 tokens came out the same." in text
    assert "1 differ by no more than rounding explains." in text
    assert "answer r1, token 50: 7 stored, 8 now (off by 3, 0.5 allowed)" in text
    assert "1 left out" in text
    none = replay | {"turns": 0, "tokens": 0, "differing": []}
    assert "no answer that could be computed again" in shown(
        cache_view.print_verified, found | {"replay": none}
    )


def test_pins_and_clearing() -> None:
    pin = {"name": "a[b]", "tokens": 700, "namespace": "ann", "what": "system prompt"}
    pins = {"pins": [pin | {"created_at": "2026-11-29T10:00:00.000000Z"}]}
    assert "a[b]" in shown(cache_view.print_pins, pins)
    assert shown(cache_view.print_pinned, pin) == "Pinned a[b]: system prompt, 700 tokens.\n"
    assert shown(cache_view.print_pins, {"pins": []}) == "Nothing is pinned.\n"
    assert shown(cache_view.print_unpinned, pin) == "a[b] is not pinned any more.\n"
    cleared = shown(cache_view.print_cleared, {"tokens": 1234, "blocks": 5})
    assert cleared == "Forgotten: 1,234 tokens in memory, 5 blocks on disk.\n"
