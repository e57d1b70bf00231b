"""Logs: one shape for all, and never what people write."""

import io
import json
import logging
from asyncio import CancelledError
from collections.abc import Iterator

import pytest
import structlog

from chatd.logs import HIDDEN, configure_logs


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_both_kinds_of_loggers_write_json_lines() -> None:
    configure_logs(as_json=True, stream=(out := io.StringIO()))
    structlog.get_logger("chatd.a").info("model loaded", seconds=1.5)
    logging.getLogger("chatd.b").warning("slow step: %d ms", 30)
    first, second = lines(out)
    assert (first["message"], first["level"], first["logger"]) == ("model loaded", "info", "chatd.a")
    assert first["seconds"] == 1.5
    assert str(first["timestamp"]).endswith("Z")
    assert (second["message"], second["level"], second["logger"]) == (
        "slow step: 30 ms",
        "warning",
        "chatd.b",
    )


def test_private_values_never_get_out() -> None:
    configure_logs(as_json=True, stream=(out := io.StringIO()))
    log = structlog.get_logger("chatd").bind(prompt="my secret diary")
    log.info("created", params={"temperature": 1}, usage={"Token_IDs": [1, 2], "output_tokens": 2})
    logging.getLogger("chatd").info("created", extra={"text": "my secret diary"})
    assert "diary" not in out.getvalue()
    assert lines(out)[0]["usage"] == {"Token_IDs": HIDDEN, "output_tokens": 2}
    assert lines(out)[0]["params"] == lines(out)[1]["text"] == HIDDEN


@pytest.mark.parametrize("as_json", [True, False])
def test_tracebacks_show_no_local_variables(as_json: bool) -> None:
    configure_logs(as_json=as_json, stream=(out := io.StringIO()))

    def fail(diary: str) -> None:
        raise ValueError("no room")

    try:
        fail("my secret" + " diary")
    except ValueError:
        structlog.get_logger("chatd").exception("it broke")
        logging.getLogger("chatd").exception("it broke too")
    assert "no room" in out.getvalue()
    assert "secret diary" not in out.getvalue()


def test_people_get_short_lines() -> None:
    configure_logs(as_json=False, stream=(out := io.StringIO()))
    structlog.get_logger("chatd").warning("disk is full", free_bytes=0)
    structlog.get_logger("chatd").debug("not shown")
    assert len(out.getvalue().splitlines()) == 1
    assert "disk is full" in out.getvalue()
    assert "free_bytes=0" in out.getvalue()


def test_access_lines_can_be_turned_off() -> None:
    for level, count in (("debug", 3), ("info", 2), ("warning", 1), ("error", 0)):
        configure_logs(as_json=True, level=level, stream=(out := io.StringIO()))
        access = logging.getLogger("chatd.access")
        access.debug("request", extra={"route": "/healthz"})
        access.info("request", extra={"route": "/ws"})
        logging.getLogger("chatd").warning("slow")
        assert len(lines(out)) == count


def test_what_shutdown_cancels_is_no_fault() -> None:
    configure_logs(as_json=True, stream=(out := io.StringIO()))
    for error in (CancelledError("graceful shutdown exceeded"), ValueError("a real one")):
        try:
            raise error
        except (CancelledError, ValueError):
            logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    [line] = lines(out)
    assert "a real one" in str(line["exception"])
