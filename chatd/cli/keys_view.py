"""What ``chatd keys`` shows."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from chatd.cli.money import short


def print_made(made: dict[str, Any], console: Console) -> None:
    """The secret by itself on a line, to be copied."""
    console.print(
        f"The key {made['name']}, of account {made['account']}. This is shown once:\n", markup=False
    )
    console.print(made["secret"], markup=False, soft_wrap=True)
    if made["first"]:
        console.print("\nFrom now on the server asks everybody for a key.", style="dim")


def print_keys(found: dict[str, Any], console: Console) -> None:
    rows = found["keys"]
    if not rows:
        console.print("There are no keys: whoever reaches the server may talk to it.")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("key", "account", "secret", "scopes", "now, of its limits"):
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row), style=None if row["revoked_at"] is None else "dim")
    console.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    scopes = " ".join(row["scopes"]) if row["revoked_at"] is None else f"revoked {row['revoked_at'][:10]}"
    return [row["name"], row["account"], f"{row['prefix']}…", scopes, ", ".join(_limits(row)) or "no limits"]


def _limits(row: dict[str, Any]) -> Iterator[str]:
    use = row["use"]
    for used, limit, unit in (
        ("requests", "requests_per_min", "requests a minute"),
        ("tokens", "tokens_per_min", "tokens a minute"),
        ("turns", "turns", "turns at once"),
    ):
        if row[limit] is not None:
            yield f"{use[used]:,} of {row[limit]:,} {unit}"
    if (budget := row["budget"]) is not None:
        held = f" and {short(use['reserved_nano'])} held" if use["reserved_nano"] else ""
        whole = f"{short(budget['nano'])} {budget['currency']} a {budget['period']}"
        yield f"{short(use['spent_nano'])} spent{held} of {whole}"


def print_revoked(gone: dict[str, Any], console: Console) -> None:
    console.print(f"The key {gone['name']} is revoked.", markup=False)


def print_login(made: dict[str, Any], console: Console) -> None:
    console.print(made["url"], markup=False, soft_wrap=True)
    console.print(f"Good once, for {made['expires_in'] // 60} minutes.", style="dim")
