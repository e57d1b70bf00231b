"""Reports as JSON: what ``/api/v1/reports`` answers and ``chatd report --json`` prints. Pure."""

from dataclasses import fields
from typing import Any

from chatd.store.days import day_of
from chatd.store.records import rfc3339
from chatd.store.usage import StorageRow, StorageSum, UsageReport, UsageRow

_NOT_FIGURES = frozenset({"labels", "first_at", "last_at", "sessions"})
_DECIMALS = 3


def usage_of(report: UsageReport) -> dict[str, Any]:
    """``{"by", "rows": [...], "totals": [...], "next"}``.

    Lines have their labels, then the fields of `UsageRow` with ``hit_rate`` and ``saved_nano``; times are RFC
    3339 in UTC. Totals have ``sessions`` instead of labels. What is not known is null.
    """
    return {
        "by": str(report.by),
        "rows": [row_of(row) for row in report.rows],
        "totals": [{"sessions": total.sessions, **figures_of(total)} for total in report.totals],
        "next": report.next,
    }


def row_of(row: UsageRow) -> dict[str, Any]:
    times = {
        name: rfc3339(at)
        for name, at in (("first_at", row.first_at), ("last_at", row.last_at))
        if at is not None
    }
    return {**row.labels, **figures_of(row), **times}


def figures_of(row: UsageRow) -> dict[str, Any]:
    kept = {f.name: _short(getattr(row, f.name)) for f in fields(row) if f.name not in _NOT_FIGURES}
    return kept | {"hit_rate": round(row.hit_rate, 6), "saved_nano": row.saved_nano}


def _short(value: Any) -> Any:
    return round(value, _DECIMALS) if isinstance(value, float) else value


def storage_sums_of(sums: tuple[StorageSum, ...]) -> list[dict[str, Any]]:
    """What all of it comes to, by tier."""
    return [
        {
            "tier": one.tier,
            "byte_seconds": one.byte_seconds,
            "currency": one.currency,
            "cost_nano": one.cost_nano,
        }
        for one in sums
    ]


def storage_of(rows: tuple[StorageRow, ...]) -> list[dict[str, Any]]:
    """One line a day, namespace and tier; ``cost_nano`` null where storage has no price."""
    return [
        {
            "day": day_of(row.day),
            "namespace": row.namespace,
            "tier": row.tier,
            "byte_seconds": row.byte_seconds,
            "currency": row.currency,
            "cost_nano": row.cost_nano,
        }
        for row in rows
    ]
