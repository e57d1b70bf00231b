"""chatd against other servers on this machine, load by load, with what is aimed at.

    python -m tests.bench.peers MODEL --vllm http://127.0.0.1:8082 --llama http://127.0.0.1:8081

The peers run already, with the same model; chatd is started for each load with its defaults. `chatd bench`
drives both over ``/v1/chat/completions``, in turn and with the same words. Run it on an idle machine: of two
cores one server's threads want both, so a peer that keeps a core busy while it has nothing to do is to be
stopped (SIGSTOP) by hand, or measured alone.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

COMMAND = (sys.executable, "-m", "chatd", "bench", "serve", "--start", "--json")
CHAT = ("--turns", "4", "--shared-prefix-len", "330", "--input-len", "20", "--output-len", "64")
LONG = (
    "--sessions",
    "5",
    "--turns",
    "1",
    "--shared-prefix-len",
    "0",
    "--input-len",
    "2000",
    "--output-len",
    "1",
)
ONE_BY_ONE = ("--request-rate", "0.15")
"""A prompt of 2,000 tokens is read by then, also by the slowest."""


@dataclass(frozen=True, slots=True)
class Row:
    """``must`` and ``goal`` bound the ratio chatd / peer: from above for times, from below for rates."""

    load: str
    options: tuple[str, ...]
    measure: str
    peers: tuple[str, ...]
    must: float
    goal: float


ONE, SOME, MANY = (("--sessions", count, *CHAT) for count in ("1", "16", "64"))
ROWS = (
    Row("1 session", ONE, "tpot_p50", ("llama",), 0.85, 0.70),
    Row("1 session", ONE, "ttft_later_p50", ("llama", "vllm"), 0.8, 0.6),
    Row("16 sessions", SOME, "output_tokens_per_s", ("vllm",), 1.2, 1.6),
    Row("16 sessions", SOME, "ttft_later_p50", ("vllm",), 0.6, 0.4),
    Row("64 sessions", MANY, "output_tokens_per_s", ("vllm",), 1.2, 1.6),
    Row("64 sessions", MANY, "ttft_later_p95", ("vllm",), 1.0, 1.0),
    Row("2,000 new tokens", (*LONG, *ONE_BY_ONE), "ttft_first_p50", ("vllm",), 1.0, 1 / 1.2),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--vllm", metavar="URL")
    parser.add_argument("--llama", metavar="URL")
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    urls = {"vllm": given.vllm, "llama": given.llama}
    measured: dict[tuple[tuple[str, ...], str], dict[str, Any]] = {}
    print(f"{'load':18} {'figure':20} {'peer':6} {'chatd':>10} {'theirs':>10}", end=" ")
    print(f"{'ratio':>6} {'must':>6} {'goal':>6}")
    for row in ROWS:
        for peer in row.peers:
            if urls[peer] is None:
                continue
            which = row.options, peer
            if which not in measured:
                measured[which] = ratios(given.model, urls[peer], row.options, given.pairs)
            show(row, peer, measured[which][row.measure])


def ratios(model: str, url: str, options: tuple[str, ...], pairs: int) -> dict[str, Any]:
    """By measure; see `chatd.bench.pairs.Compared`."""
    command = [*COMMAND, "--model", model, "--against", url, "--pairs", str(pairs), *options]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return dict(found["ratios"])


def show(row: Row, peer: str, found: dict[str, Any]) -> None:
    below = found["is_time"]
    met = [found["ratio"] <= bound if below else found["ratio"] >= bound for bound in (row.must, row.goal)]
    said = "goal met" if met[1] else "must met" if met[0] else "missed"
    print(
        f"{row.load:18} {row.measure:20} {peer:6} {found['own']:10.4g} {found['peer']:10.4g} "
        f"{found['ratio']:6.2f} {row.must:6.2f} {row.goal:6.2f}  {said}",
        flush=True,
    )


if __name__ == "__main__":
    main()
