"""What a starting server says where it is not on a terminal."""

import io
import os

from chatd.cli.lasting_output import LastingOutput
from chatd.cli.serve_screen import PlainScreen


def test_every_kind_of_work_is_told_and_of_each_a_line_every_tenth() -> None:
    out = io.StringIO()
    screen = PlainScreen(out)
    for layer in range(1, 31):
        screen.progress(layer / 100, f"layer {layer} of 30")
    screen.progress(0.31, "compiling kernels")
    screen.progress(0.32, "compiling kernels")
    screen.progress(0.33, "running a first step")
    assert out.getvalue().splitlines() == [
        "  1 %  layer 1 of 30",
        " 11 %  layer 11 of 30",
        " 21 %  layer 21 of 30",
        " 31 %  compiling kernels",
        " 33 %  running a first step",
    ]


def test_output_goes_nowhere_when_its_reader_is_gone() -> None:
    read, write = os.pipe()
    with open(write, "w") as pipe:
        out = LastingOutput(pipe)
        assert not out.isatty()
        print("heard", file=out)
        out.flush()
        assert os.read(read, 100) == b"heard\n"
        os.close(read)
        for _ in range(3):
            print("not heard", file=out)
            out.flush()
