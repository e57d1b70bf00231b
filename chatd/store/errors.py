"""What can go wrong in the store beyond a wrong id or a busy target."""

from chatd.errors import ChatdError, Conflict


class TipMoved(Conflict):
    """Another message went under the tip first: read the conversation again and retry."""


class StoreFailure(ChatdError):
    """The database could not be read or written; nothing of this call is stored."""

    code = "store_failure"
    http_status = 503
    retryable = True


class LedgerViolation(ChatdError):
    """A caller broke the law of the ledger; nothing of its batch is stored."""

    code = "internal_error"
