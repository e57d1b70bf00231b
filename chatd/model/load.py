"""Opening a model file (header only), then loading its weights."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from chatd.errors import ModelFileError, SetupError
from chatd.model.config import ModelConfig
from chatd.model.gguf_file import GgufFile
from chatd.model.hf_folder import PICKLES, HfFolder
from chatd.model.linear import multiplies_bf16
from chatd.model.names import check_shapes
from chatd.model.quant import compile_kernels, multiplies_bytes, natural_bits, quant_refusal
from chatd.model.weights import Progress, Weights, read_weights
from chatd.text.chat_template import ChatTemplate
from chatd.text.tokenizer import Tokenizer

WEIGHT_FORMS = {"bf16": torch.bfloat16, "fp32": torch.float32}
CODE_FORMS = {"int8": 8, "int4": 4}

_SAMPLE_BYTES = 4096


class ModelFile:
    """A vetted model file or folder whose weights are not loaded yet."""

    def __init__(self, path: Path, source: GgufFile | HfFolder) -> None:
        self.path = path
        self.source = source
        self.config: ModelConfig = source.config

    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer. Raises ModelFileError if it is missing or of an unknown kind."""
        return self.source.tokenizer()

    def chat_template(self) -> ChatTemplate:
        """The model's chat template, vetted. Raises TemplateError, or ModelFileError if there is none."""
        source, bos, eos = self.source.chat_template()
        return ChatTemplate(source, bos=bos, eos=eos)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the configuration, the tensors' names and sizes, and the weights; not with the name.

        Only the ends and the middle of every tensor are read (SmolLM2: 5 ms).
        """
        digest = hashlib.sha256(repr(replace(self.config, name="")).encode())
        for name, path, begin, size in self.source.extents():
            digest.update(f"{name}:{size};".encode())
            with path.open("rb") as file:
                for at in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                    file.seek(begin + at)
                    digest.update(file.read(min(_SAMPLE_BYTES, size - at)))
        return digest.hexdigest()


def open_model(path: Path) -> ModelFile:
    """Read and vet the header of a .gguf file or a Hugging Face folder; no weights.

    Raises ModelFileError, naming the file and what is wrong, within a second and without a large
    allocation.
    """
    shown = str(path)[-200:]
    try:
        source = _reader(path)(path)
        check_shapes(source.config, source)
    except ModelFileError as error:
        raise ModelFileError(f"{shown}: {error.message}") from error
    except OSError as error:
        raise ModelFileError(f"{shown} cannot be read: {error.strerror or error}") from error
    return ModelFile(path, source)


def _reader(path: Path) -> type[GgufFile] | type[HfFolder]:
    suffix = path.suffix.lower()
    if path.is_dir():
        return HfFolder
    if suffix in PICKLES:
        raise ModelFileError("this is a pickle, which can run code; give a .gguf file or a folder instead")
    if suffix in (".safetensors", ".json"):
        raise ModelFileError("this is one file of a model folder; give the folder that holds it")
    if not path.is_file():
        raise ModelFileError("there is no such file")
    return GgufFile


@dataclass(frozen=True, slots=True)
class WeightForm:
    """How weights are kept: ``bits``, 4 or 8, of the linear layers' codes, or 0 where they are plain.
    ``dtype`` is that of everything else, activations too.
    """

    dtype: torch.dtype
    bits: int = 0

    @property
    def name(self) -> str:
        """bfloat16, float32, int8, int4."""
        return f"int{self.bits}" if self.bits else str(self.dtype).removeprefix("torch.")

    @property
    def kv_dtype(self) -> torch.dtype:
        """What KV is kept in if nobody says: never more bits than the weights are worth."""
        return torch.bfloat16 if self.bits else self.dtype


def weight_form(form: str, device: torch.device, file: ModelFile) -> WeightForm:
    """The form for ``--weights``. Raises SetupError for one that this machine cannot have.

    "auto" on a CPU that multiplies bytes is codes, of as many bits as the file's own: all linears of SmolLM2
    but the head take 2.0 ms at 1 row, 5.9 at 16 and 67 at 256; in bf16 5.4, 9.0 and 62; in fp32 26 at 1 row
    (2 cores of a Zen 5, torch 2.13).
    """
    if form == "auto":
        if device.type == "cpu" and multiplies_bytes():
            return WeightForm(torch.float32, natural_bits(file.source))
        bf16 = device.type != "cpu" or multiplies_bf16()
        return WeightForm(torch.bfloat16 if bf16 else torch.float32)
    if form in WEIGHT_FORMS:
        return WeightForm(WEIGHT_FORMS[form])
    if form not in CODE_FORMS:
        known = ", ".join([*WEIGHT_FORMS, *CODE_FORMS])
        raise SetupError(f"--weights is {form}, which does not exist: use auto, {known}.", param="weights")
    if device.type != "cpu":
        raise SetupError(f"--weights is {form}, which is for CPUs. Use bf16, or auto.", param="weights")
    if why := quant_refusal():
        raise SetupError(f"--weights is {form}, but {why}. Use bf16 or fp32, or auto.", param="weights")
    return WeightForm(torch.float32, CODE_FORMS[form])


def load_weights(
    file: ModelFile,
    *,
    dtype: torch.dtype,
    device: torch.device,
    bits: int = 0,
    progress: Progress = lambda share, what: None,
) -> Weights:
    """Read all weights, in the form of ``dtype`` and ``bits`` (`WeightForm`). ``progress`` may be called from
    this thread only.
    """
    if bits:
        compile_kernels(bits, lambda share, what: progress(0.0, what))
    weights = read_weights(file.config, file.source, dtype, device, progress, bits)
    file.source.release()
    return weights
