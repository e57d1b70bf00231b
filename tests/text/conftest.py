"""The default model's tokenizer, read once."""

from pathlib import Path

import pytest

from chatd.text.tokenizer import Tokenizer
from tests.text.vocabularies import smollm_metadata


@pytest.fixture(scope="session")
def smollm_header(model_path: Path) -> dict[str, object]:
    return smollm_metadata(model_path)


@pytest.fixture(scope="session")
def smollm(smollm_header: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm_header)
