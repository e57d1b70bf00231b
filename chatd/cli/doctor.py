"""``chatd doctor``: what was found on this machine, and what a server would choose on it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from chatd.cli.options import common_options, setting_options, settings_from
from chatd.config import Settings
from chatd.errors import SetupError

CHOOSING = ["model", "device", "weights", "kernels", "kv_dtype", "page_size", "step_tokens", "max_running"]


@dataclass(frozen=True)
class Choice:
    """``model`` is empty, and ``weights`` too, if there is no model file yet to choose them by."""

    device: str
    kernels: str
    model: str
    weights: str
    kv: str
    step_tokens: int
    kernels_to_compile: bool


@click.command()
@setting_options(CHOOSING)
@common_options
def doctor(config_file: Path | None, as_json: bool, **flags: object) -> None:
    """Say what this machine can do, and what `chatd serve` with the same options would choose."""
    settings = settings_from(flags, config_file)
    # torch takes a second to import.
    from chatd.cli.machine import look

    machine, choice = look(), choose(settings)
    if as_json:
        click.echo(json.dumps({"machine": asdict(machine), "chosen": asdict(choice)}, indent=2))
        return
    for name, text in lines(asdict(machine), choice):
        click.echo(f"  {name:<10}{text}")


def choose(settings: Settings) -> Choice:
    """As a start does it. Raises `SetupError` for what a start would refuse."""
    from chatd.cli.loading import choose_device, forms, short_name, step_tokens
    from chatd.engine.prepare import backend_name
    from chatd.model.load import open_model

    device = choose_device(settings.device)
    kernels, path = backend_name(settings.kernels, device), model_here(settings)
    weights = kv = ""
    if path is not None:
        form, kv_type = forms(settings, device, open_model(path))
        weights, kv = form.name, short_name(kv_type)
    return Choice(
        str(device),
        kernels,
        "" if path is None else path.name,
        weights,
        kv,
        step_tokens(settings, device),
        kernels == "cpu" and nothing_compiled(),
    )


def model_here(settings: Settings) -> Path | None:
    """Of ``--model``; None for the default one if it was not fetched yet."""
    from chatd.cli.loading import model_path
    from chatd.config import DEFAULT_MODEL
    from chatd.model.fetch import default_model

    if settings.model == DEFAULT_MODEL:
        try:
            return default_model(offline=True)
        except SetupError:
            return None
    return model_path(settings.model, lambda share, what: None)


def nothing_compiled() -> bool:
    from chatd_kernels.cpu.library import cache_folder

    return not any(cache_folder().glob("*.o"))


def lines(machine: dict[str, object], choice: Choice) -> Iterator[tuple[str, str]]:
    """For people: names and what is said of them."""
    cpu = machine["cpu"]
    assert isinstance(cpu, dict)
    quota = f", a quota of {cpu['quota_cores']}" if cpu["quota_cores"] else ""
    yield (
        "CPU",
        f"{cpu['name']} ({cpu['architecture']}), {cpu['cores']} cores{quota}; {cpu['threads']} compute",
    )
    found = [
        words
        for key, words in (
            ("avx512", "vectors of 512 bits"),
            ("byte_products", "products of bytes"),
            ("bf16_products", "products of bf16"),
            ("matrix_unit", "a matrix unit (AMX)"),
        )
        if cpu[key]
    ]
    yield (
        "",
        f"{', '.join(found) or 'nothing beyond plain vectors'}; LLVM calls it {cpu['llvm'] or 'nothing'}",
    )
    yield "memory", f"{cpu['memory_free'] / 2**30:.1f} GiB free, read at {cpu['read_gb_s']:.0f} GB/s"
    gpus = machine["gpus"]
    assert isinstance(gpus, tuple)
    for gpu in gpus:
        yield "GPU", f"{gpu['name']}, {gpu['memory'] / 2**30:.0f} GiB, compute capability {gpu['capability']}"
    if not gpus:
        yield "GPU", "none that torch can use"
    packages = machine["packages"]
    assert isinstance(packages, dict)
    yield "versions", ", ".join(f"{name} {number}" for name, number in packages.items())
    if machine["no_kernels"]:
        yield "kernels", f"those for CPUs cannot run: {machine['no_kernels']}"
    yield from chosen(choice)


def chosen(choice: Choice) -> Iterator[tuple[str, str]]:
    later = " (compiled at the first start, in some seconds)" if choice.kernels_to_compile else ""
    yield (
        "chosen",
        f"{choice.kernels} kernels on {choice.device}{later}, steps of {choice.step_tokens} tokens",
    )
    if choice.model:
        yield "", f"weights in {choice.weights} and KV in {choice.kv} for {choice.model}"
    else:
        yield "", "weights by the model's file, which is not here yet: chatd serve fetches it"
