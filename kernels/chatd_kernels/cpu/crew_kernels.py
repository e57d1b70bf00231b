"""The loop that runs a list of kernels, and that of the threads that help it; see `crew`.

The block that all of them share, int64 each, in lines of their own::

      0  turn      odd while a kernel is open to helpers; one more at each opening and each closing
     64  inside    helpers that look at the open kernel or are at work on it
    128  waiting   1 while the owner sleeps until ``inside`` is 0
    192  sleepers  helpers that sleep until the turn changes
    256  body, argument, seats, joined: the open kernel, how many helpers it has room for and how many came
    320  taken     1 while somebody's list is being run; then 1 when helpers are to go
    384  number    of the system call futex; then how long to spin

A helper says that it is inside before it looks at the turn again, and the owner closes before it looks who is
inside: one of the two sees the other. So the owner waits for those who began something, never for one that
sleeps or was not given a core.
"""

from typing import Any

from chatd_kernels.cpu.simd import add, call, device, futex, load_i64, pause, peek, store_i64, swap, take

INSIDE, WAITING, SLEEPERS, BODY, TAKEN, NUMBER = 64, 128, 192, 256, 320, 384
SIZE = 448
WAIT, WAKE = 128, 129
"""futex operations, private to the process."""


@device
def open_to_helpers(crew, body, argument, helpers):  # type: ignore[no-untyped-def]
    store_i64(crew + BODY, body)
    store_i64(crew + BODY + 8, argument)
    store_i64(crew + BODY + 16, helpers)
    store_i64(crew + BODY + 24, 0)
    add(crew, 1)
    if peek(crew + SLEEPERS) > 0:
        futex(load_i64(crew + NUMBER), crew, WAKE, helpers)


@device
def close(crew):  # type: ignore[no-untyped-def]
    """Until nobody is inside."""
    add(crew, 1)
    spins, most = 0, load_i64(crew + NUMBER + 8)
    while True:
        inside = peek(crew + INSIDE)
        if inside == 0:
            break
        if spins < most:
            spins += 1
            pause()
        else:
            swap(crew + WAITING, 1)
            inside = peek(crew + INSIDE)
            if inside > 0:
                futex(load_i64(crew + NUMBER), crew + INSIDE, WAIT, inside)
            swap(crew + WAITING, 0)


@device
def look_in(crew, turn):  # type: ignore[no-untyped-def]
    """Help with the kernel of ``turn`` if it is still open and has room."""
    add(crew + INSIDE, 1)
    if peek(crew) == turn and take(crew + BODY + 24) < load_i64(crew + BODY + 16):
        call(load_i64(crew + BODY), load_i64(crew + BODY + 8))
    add(crew + INSIDE, -1)
    if peek(crew + WAITING):
        futex(load_i64(crew + NUMBER), crew + INSIDE, WAKE, 1)


def make_run() -> Any:
    def run(p):  # type: ignore[no-untyped-def]
        """The crew, a list, how many entries. An entry: body, argument, threads; of the argument the first
        three numbers, which threads count in, begin at 0.
        """
        crew, entry, end = load_i64(p), load_i64(p + 8), load_i64(p + 16)
        end = entry + 24 * end
        alone = swap(crew + TAKEN, 1) != 0
        while entry < end:
            body, argument, threads = load_i64(entry), load_i64(entry + 8), load_i64(entry + 16)
            for i in range(3):
                store_i64(argument + 8 * i, 0)
            if alone or threads < 2:
                call(body, argument)
            else:
                open_to_helpers(crew, body, argument, threads - 1)
                call(body, argument)
                close(crew)
            entry += 24
        if not alone:
            swap(crew + TAKEN, 0)

    return run


def make_help() -> Any:
    def help_out(crew):  # type: ignore[no-untyped-def]
        """Until the crew is dismissed."""
        seen, spins, most = 0, 0, load_i64(crew + NUMBER + 8)
        while peek(crew + TAKEN + 8) == 0:
            turn = peek(crew)
            if turn % 2 == 1 and turn != seen:
                seen, spins = turn, 0
                look_in(crew, turn)
            elif spins < most:
                spins += 1
                pause()
            else:
                add(crew + SLEEPERS, 1)
                futex(load_i64(crew + NUMBER), crew, WAIT, turn % (1 << 32))
                add(crew + SLEEPERS, -1)
                spins = 0

    return help_out
