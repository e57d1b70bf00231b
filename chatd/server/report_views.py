"""Reports as JSON: what ``/api/v1/report`` answers and ``chatd report --json`` prints. Pure."""

from dataclasses import fields
from typing import Any

from chatd.store.records import rfc3339
from chatd.store.session_report import ReportTotal, SessionRow, SessionsReport
from chatd.store.verify_report import VerifyReport


def report_of(report: SessionsReport) -> dict[str, Any]:
    """``{"sessions": [...], "totals": [...]}``; fields as in the records, times RFC 3339 in UTC."""
    return {
        "sessions": [_row_of(row) for row in report.sessions],
        "totals": [_figures_of(total) for total in report.totals],
    }


def _row_of(row: SessionRow) -> dict[str, Any]:
    return _figures_of(row) | {"first_at": rfc3339(row.first_at), "last_at": rfc3339(row.last_at)}


def _figures_of(row: SessionRow | ReportTotal) -> dict[str, Any]:
    kept = {f.name: getattr(row, f.name) for f in fields(row)}
    return kept | {"hit_rate": round(row.hit_rate, 6), "saved_nano": row.saved_nano}


def verdict_of(report: VerifyReport, settled: int = 0) -> dict[str, Any]:
    """``{"ok", "findings": [{check, subject, message}], "runs", "responses", "messages", "pieces"}``

    and ``unsettled`` (see `VerifyReport`), and ``settled``: how many answers of a killed server were ended
    before looking.
    """
    return {
        "ok": report.ok,
        "unsettled": report.unsettled,
        "settled": settled,
        "findings": [
            {"check": one.check, "subject": one.subject, "message": one.message} for one in report.findings
        ],
        "runs": report.runs,
        "responses": report.responses,
        "messages": report.messages,
        "pieces": report.pieces,
    }
