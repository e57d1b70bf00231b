"""The model that stored answers are computed again with: the one they were made with, or none."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields

import torch

from chatd.cli.loading import choose_device, forms, model_name, model_path, short_name
from chatd.cli.replay import Replayer, StoredTurn
from chatd.config import Settings
from chatd.engine.messages import SamplingParams
from chatd.engine.prepare import backend, backend_name
from chatd.errors import SetupError
from chatd.model.load import load_weights, open_model
from chatd.server.backend import Formats
from chatd.store.records import ReplayTurn

Tell = Callable[[float, str], None]


def open_replayer(settings: Settings, turns: Sequence[ReplayTurn], tell: Tell) -> Replayer:
    """Loads ``settings``' model. `SetupError`, before that, if a turn was made with another or otherwise."""
    device = choose_device(settings.device)
    file = open_model(model_path(settings.model, tell))
    form, kv = forms(settings, device, file)
    formats = Formats(
        backend_name(settings.kernels, device),
        str(device),
        form.name,
        short_name(kv),
        settings.page_size,
    )
    _refuse_others(turns, (model_name(file.path), formats.backend, formats.text))
    ops = backend(settings.kernels, device)
    weights = load_weights(file, dtype=form.dtype, bits=form.bits, device=device, progress=tell)
    exact = not form.bits and form.dtype == kv == torch.float32
    return Replayer(weights, kv, ops, settings.page_size, exact=exact)


def _refuse_others(turns: Sequence[ReplayTurn], here: tuple[str, str, str]) -> None:
    names = ("the model", "the backend", "the formats")
    for turn in turns:
        made = (turn.response.model, turn.response.backend, turn.response.formats)
        for name, theirs, ours in zip(names, made, here, strict=True):
            if theirs != ours:
                raise SetupError(
                    f"Answer {turn.response.id} was not made with {name} that would compute it again: "
                    f"{theirs or 'unknown'} then, {ours} now. Give the options that the server had "
                    "(--model, --device, --weights, --kernels, --kv-dtype, --page-size), or a smaller N."
                )


def stored_turn(turn: ReplayTurn) -> StoredTurn:
    """What of it matters to the model."""
    return StoredTurn(
        response_id=turn.response.id,
        ids=turn.token_ids,
        prompt_len=len(turn.token_ids) - turn.answer_len,
        params=_params_of(turn.response.params_json),
    )


def _params_of(text: str) -> SamplingParams:
    """The parameters that were in force, as the ledger keeps them."""
    kept = json.loads(text)
    named = {one.name: kept[one.name] for one in fields(SamplingParams)}
    bias = tuple((int(token), value) for token, value in named.pop("logit_bias").items())
    return SamplingParams(**named, logit_bias=bias)
