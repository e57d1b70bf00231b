"""What is in the cache, pinned, cleared and verified, for people. Pure but for writing to a console."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from chatd.cli.cache_stats_view import Figures, count_of, percent, table_of
from chatd.cli.chat_screen import harmless
from chatd.config_kinds import show_size

HEAD_CHARS = 60


def print_paths(found: Figures, console: Console) -> None:
    """A tree of what is in memory, an account at its roots, and a table of what is on disk."""
    if found["paths"]:
        console.print(_tree(found["paths"]))
        console.print()
    else:
        console.print("Nothing is in memory.", style="dim")
    if not found["disk"]:
        console.print("Nothing is on disk.", style="dim")
        return
    table = table_of("on disk", "blocks", "size", "written since", "used last")
    for one in found["disk"]:
        name = whose(one["namespace"]) + ("" if one["current"] else " (another model)")
        figures = (f"{one['blocks']:,}", show_size(one["nbytes"]), _when(one["oldest"]), _when(one["newest"]))
        table.add_row(escape(name), *figures)
    console.print(table)


def _when(at: float) -> str:
    """Unix seconds, in local time."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def whose(namespace: str) -> str:
    return namespace or "shared by all"


def _tree(paths: Sequence[Figures]) -> Tree:
    """A branch for each place where paths part; what lies between two of them is one line."""
    root = Tree("in memory", guide_style="dim")
    accounts: dict[str, Tree] = {}
    made: dict[int, Tree] = {}
    below = _children(paths)
    for at, path in enumerate(paths):
        parent, account = path["parent"], path["namespace"]
        if parent >= 0 and paths[parent]["namespace"] == account:
            if len(below[parent]) == 1:  # is in its parent's line
                made[at] = made[parent]
                continue
            above = made[parent]
        else:
            above = accounts.get(account) or root.add(f"[bold]{escape(whose(account))}[/bold]")
            accounts[account] = above
        made[at] = above.add(_line([paths[one] for one in _run(at, below)]))
    return root


def _children(paths: Sequence[Figures]) -> list[list[int]]:
    """Of each path, by their indices. What is private under something shared is another account's tree."""
    below: list[list[int]] = [[] for _ in paths]
    for at, path in enumerate(paths):
        if path["parent"] >= 0 and paths[path["parent"]]["namespace"] == path["namespace"]:
            below[path["parent"]].append(at)
    return below


def _run(at: int, below: list[list[int]]) -> list[int]:
    """``at`` and what follows it without a branch."""
    run = [at]
    while len(below[run[-1]]) == 1:
        run += below[run[-1]]
    return run


def _line(run: Sequence[Figures]) -> str:
    first, last = run[0], run[-1]
    start, end = first["start"], last["start"] + last["tokens"]
    stored = sum(one["stored"] for one in run)
    on_disk = f", {percent(stored, end - start)} on disk" if stored else ""
    used = ", in use" if any(one["locks"] for one in run) else ""
    head = " ".join(harmless(first["head"]).split())
    head = head if len(head) <= HEAD_CHARS else head[: HEAD_CHARS - 1] + "…"
    pages = count_of(sum(one["pages"] for one in run), "page")
    return f"{start:,}–{end:,} [dim]({pages}{on_disk}{used})[/dim] {escape(head)}"


# --- pins, clear


def print_pins(found: Figures, console: Console) -> None:
    if not found["pins"]:
        console.print("Nothing is pinned.", style="dim")
        return
    table = table_of("pin", "tokens", "of", "what", "since")
    for column in table.columns[2:]:
        column.justify = "left"
    for one in found["pins"]:
        since = _when(datetime.fromisoformat(one["created_at"]).timestamp())
        table.add_row(
            escape(one["name"]), f"{one['tokens']:,}", escape(one["namespace"]), escape(one["what"]), since
        )
    console.print(table)


def print_pinned(made: Figures, console: Console) -> None:
    what = f"Pinned {made['name']}: {made['what']}, {made['tokens']:,} tokens."
    console.print(what, markup=False, soft_wrap=True)


def print_unpinned(gone: Figures, console: Console) -> None:
    console.print(f"{gone['name']} is not pinned any more.", markup=False)


def print_cleared(done: Figures, console: Console) -> None:
    console.print(f"Forgotten: {done['tokens']:,} tokens in memory, {done['blocks']:,} blocks on disk.")


# --- verify


def print_verified(found: Figures, console: Console) -> None:
    records = found["records"]
    damages = records["damages"]
    whole = f"{records['records']:,} records, {show_size(records['nbytes'])} of KV"
    if damages:
        console.print(f"{len(damages):,} of {whole} were not right:", style="red", soft_wrap=True)
        for one in damages:
            what = "damaged, removed" if one["removed"] else f"could not be read: {one['cause']}"
            where = f"{one['file']} slot {one['slot']}"
            console.print(f"  {where}, of {whose(one['namespace'])}: {what}", markup=False, soft_wrap=True)
    else:
        console.print(f"All is whole: {whole} read.", style="green", soft_wrap=True)
    if "replay" in found:
        _print_replay(found["replay"], console)


def _print_replay(replay: Figures, console: Console) -> None:
    if not replay["turns"]:
        console.print("There is no answer that could be computed again.", style="dim")
        return
    wrong = [one for one in replay["differing"] if one["is_wrong"]]
    same = replay["tokens"] - len(replay["differing"])
    console.print(
        f"Computed again with the cache off, on {replay['backend']} ({replay['formats']}): "
        f"{replay['turns']:,} answers, {replay['tokens']:,} tokens.",
        soft_wrap=True,
    )
    if replay["left_out"]:
        console.print(f"  {replay['left_out']:,} left out: drawn with filters.", style="dim")
    console.print(f"  {same:,} tokens came out the same.")
    if len(replay["differing"]) > len(wrong):
        console.print(
            f"  {len(replay['differing']) - len(wrong):,} differ by no more than rounding explains."
        )
    if wrong:
        console.print(f"  {len(wrong):,} are wrong:", style="red")
        for one in wrong:
            where = f"answer {one['response_id']}, token {one['position']}"
            distance = f"off by {one['distance']:.3g}, {one['allowed']:.3g} allowed"
            console.print(
                f"    {where}: {one['stored']} stored, {one['computed']} now ({distance})", soft_wrap=True
            )
    else:
        console.print("  None is wrong.", style="green")
