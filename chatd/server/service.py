"""ChatService: from a command of one account to a running, billed, streaming response."""

from chatd.server.commands import ChatTurn, CreateCommand, Started

__all__ = ["ChatTurn", "CreateCommand", "Started"]
