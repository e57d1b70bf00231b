"""The disk tier of a starting server."""

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.costs import Costs
from chatd.cache.disk.tier import DiskTier
from chatd.cache.prefix_cache import PrefixCache
from chatd.cache.tiering import Tiering
from chatd.cli.disk_settings import disk_folder, disk_quota
from chatd.config import Settings
from chatd.engine.runner import TorchRunner
from chatd.errors import SetupError
from chatd.model.fingerprint import KVForm, kv_fingerprint
from chatd.model.load import ModelFile
from chatd.text.tokenizer import Tokenizer


def open_disk(settings: Settings, file: ModelFile, tokenizer: Tokenizer, form: KVForm) -> DiskTier | None:
    """None if it is off. Raises `SetupError`, which says what to do."""
    if settings.disk == "off" or settings.no_prefix_cache:
        return None
    folder = disk_folder(settings)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fingerprint = kv_fingerprint(file, tokenizer.fingerprint, form, folder)
        quota = disk_quota(settings)
    except OSError as error:
        raise SetupError(
            f"The folder of the disk tier, {folder}, cannot be used: {error.strerror}. Name another with "
            "--disk-dir, or turn the tier off with --disk off."
        ) from None
    block_bytes = form.record_bytes * (BLOCK_LEN // form.page_size)
    return DiskTier.open(folder, fingerprint, block_bytes, quota, ttl_s=settings.disk_ttl)


def tiering_over(
    disk: DiskTier | None, cache: PrefixCache, runner: TorchRunner, settings: Settings
) -> Tiering:
    """What the scheduler sees of ``disk``; what ``cache`` evicts goes there."""
    if disk is None:
        return Tiering.off(cache)
    write_through = settings.disk == "write-through"
    tiering = Tiering(cache, disk, runner.take_buffer, Costs(), write_through=write_through)
    cache.on_evict = tiering.spiller.on_evict
    return tiering
