"""Lines of reports that tests show."""

import dataclasses

from chatd.store.usage import UsageRow


def session(title: str, session_id: str = "3fa2b1c0" * 4) -> UsageRow:
    return UsageRow(
        labels={"session_id": session_id, "title": title, "namespace": "local"},
        currency="CNY",
        sessions=None,
        turns=3,
        prompt_tokens=1200,
        gpu_hit=900,
        disk_hit=0,
        computed=300,
        output_tokens=64,
        preemptions=0,
        recomputed=0,
        ttft_hit_p50_ms=47.2,
        ttft_hit_p95_ms=61.0,
        ttft_miss_p50_ms=1512.0,
        ttft_miss_p95_ms=1600.0,
        tpot_p50_ms=16.4,
        queue_p95_ms=1.0,
        total_p50_ms=1100.0,
        saved_s=38.4,
        cost_nano=518_000,
        without_cache_nano=1_328_000,
        unpriced=0,
        first_at=1_700_000_000_000_000,
        last_at=1_700_000_060_000_000,
    )


def total() -> UsageRow:
    return dataclasses.replace(session(""), labels={}, sessions=1, first_at=None, last_at=None)


def day(name: str, **changed: object) -> UsageRow:
    row = dataclasses.replace(session(""), labels={"day": name}, first_at=None, last_at=None)
    return dataclasses.replace(row, **changed)  # type: ignore[arg-type]
