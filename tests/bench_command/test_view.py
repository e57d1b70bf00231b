"""What people see: it fits their terminal, and says all that they have to know."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from chatd.bench.answers import Answer, Refused, Run
from chatd.bench.engine_parts import DecodeFigures, PrefillFigures
from chatd.bench.figures import Spread, figures
from chatd.bench.load import Load, Range
from chatd.bench.pairs import compare
from chatd.cli.bench_view import (
    describe_load,
    describe_machine,
    describe_model,
    percent,
    print_compared,
    print_decoded,
    print_figures,
    print_prefilled,
    print_sides,
    say,
    show_rate,
    show_time,
)

MEMORY = {"resident_bytes": 3 << 29, "most_resident_bytes": 2 << 30, "kv_bytes": 1 << 30}
CPU = {
    "name": "Xeon",
    "cores": 2,
    "threads": 2,
    "avx512": True,
    "byte_products": True,
    "bf16_products": False,
}
MACHINE = {"cpu": CPU | {"matrix_unit": True}, "gpus": (), "memory": 16 << 30}


def a_run(turns: int = 3, sessions: int = 4, slow: float = 1.0) -> Run:
    run = Run(turns * sessions, 100.0, 100.0 + 4 * slow)
    for session in range(sessions):
        for turn in range(turns):
            at = 100.0 + turn * slow
            one = Answer(
                session, turn, 3, at, [(at + slow * (0.4 if turn == 0 else 0.03), 1), (at + 0.9 * slow, 2)]
            )
            one.ended_at, one.output_tokens, one.prompt_tokens = at + slow * 0.95, 3, 1000
            one.gpu_hit, one.disk_hit, one.queue_s = (0 if turn == 0 else 900), 0, 0.001
            one.reused = one.gpu_hit
            run.answers.append(one)
    return run


def shown(run: Run, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_figures(figures(run), run, MEMORY, console)
    return read(console)


def read(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    run, slower = a_run(), a_run(slow=1.5)
    load = replace(Load(), unique_prefix_len=Range(0, 4000), think_time=Range(0.5, 2), request_rate=4.0)
    say(console, "load", describe_load(load))
    print_figures(figures(run), run, MEMORY, console)
    print_compared(compare([(figures(slower), figures(run))]), "chatd", "peer", console)
    print_sides([("peer", [(slower, figures(slower))]), ("chatd", [(run, figures(run))])], console)
    lines = read(console).splitlines()
    assert max(map(cell_len, lines)) <= width


def test_a_run_is_told_whole() -> None:
    text = shown(a_run())
    for words in (
        "TTFT, first turn          400 ms    400 ms",
        "TTFT, later turns        30.0 ms   30.0 ms",
        "9.00 output tokens/s",
        "12,000 tokens: 60 % from memory, 0 % from disk, 40 % computed",
        "1.5 GiB resident (at most 2 GiB), KV pool 1 GiB",
        "errors     none",
        "1  miss    400 ms  ██████████████████████████████  0 % reused",
        "2  hit    30.0 ms  ██▎                             90 % reused",
    ):
        assert words in text, text


def test_errors_are_told_with_what_the_server_said() -> None:
    run = a_run()
    run.refuse(run.answers[-1], Refused("overloaded", "Too much is waiting already."), 104.0, 2)
    run.answers[-2].output_tokens = 2
    run.interrupted = True
    text = shown(run)
    for words in (
        "Interrupted",
        "1 x overloaded: Too much is waiting already.",
        "2 turns after",
        "1 of the answers ended",
    ):
        assert words in text


def test_a_run_without_a_single_answer_says_why() -> None:
    run = Run(1, 0.0, 1.0, [Answer(0, 0, 3, 0.0)])
    run.refuse(run.answers[0], Refused("connection", "nothing listens at that address"), 0.5, 0)
    assert "1 x connection: nothing listens at that address" in shown(run)


def test_many_turns_are_shown_in_part() -> None:
    lines = [line for line in shown(a_run(turns=50)).splitlines() if "reused" in line and "%" in line]
    assert len(lines) == 12
    assert [lines[0].split()[0], lines[-1].split()[0]] == ["1", "50"]


def test_a_comparison_says_which_is_better_and_how_often() -> None:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    pairs = [(figures(a_run(slow=2)), figures(a_run())), (figures(a_run()), figures(a_run(slow=1.5)))]
    print_compared(compare([*pairs, pairs[0]]), "chatd", "peer", console)
    lines = {line[:20].strip(): " ".join(line.split()) for line in read(console).splitlines()}
    assert lines["TTFT first turn p50"].endswith("800 ms 400 ms 0.50 0.50-1.50 chatd 2/3")
    assert lines["output tokens/s"].endswith("4.50 9.00 2.00 0.67-2.00 chatd 2/3")


def test_both_sides_errors_are_told() -> None:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    good, bad = a_run(), a_run()
    bad.refuse(bad.answers[0], Refused("http_500", "Oh dear."), 101.0, 0)
    print_sides([("peer", [(bad, figures(bad))]), ("chatd", [(good, figures(good))])], console)
    assert "peer: 1 x http_500: Oh dear." in read(console)
    assert "chatd 60 % of" in read(console)


def test_the_engines_parts() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_decoded(
        [DecodeFigures(16, 500, 40, Spread(40, 0.03, 0.028, 0.033, 0.05, 0.09, 0.1), 495.0)], console
    )
    print_prefilled([PrefillFigures(2000, 3, 1.25, 1.0)], console)
    text = " ".join(read(console).split())
    assert "16 28.0 ms 33.0 ms 90.0 ms 495 30.9" in text
    assert "2,000 1.25 s 1.00 s 1,600" in text


def test_numbers_have_three_digits_or_so() -> None:
    times = (0.00831, 0.009996, 0.0462, 0.0999, 0.5116, 0.9996, 1.346, 100.2)
    assert [show_time(one) for one in times] == [
        "8.31 ms", "10.0 ms", "46.2 ms", "99.9 ms", "512 ms", "1.00 s", "1.35 s", "100 s",
    ]  # fmt: skip
    assert [show_rate(one) for one in (3.434, 31.02, 1387.4)] == ["3.43", "31.0", "1,387"]
    assert [percent(one) for one in (None, 0.85, 0.9123, 1.0)] == ["n/a", "85 %", "91.2 %", "100 %"]


def test_what_it_was_measured_on() -> None:
    assert describe_machine(MACHINE) == "Xeon, 2 cores, 2 compute, AVX-512 VNNI AMX, 16.0 GiB"
    assert describe_model({"name": "m", "weights": ""}) == "m"
    model = {"name": "m", "weights": "int4", "kernels": "cpu", "device": "cpu", "kv_dtype": "bfloat16"}
    said = describe_model(model | {"cache_on": False})
    assert said == "m, int4 weights, bfloat16 KV, cpu kernels on cpu, no prefix cache"
    assert describe_load(Load(sessions=1, turns=1, seed=9)).startswith(
        "1 session x 1 turn, all at once; prefix 300"
    )
