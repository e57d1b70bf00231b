"""Where the disk tier lies and how much it may take, when somebody or nobody says."""

import shutil
from pathlib import Path

from chatd.config import Settings
from chatd.config_kinds import AUTO

FOLDER_NAME = "kv"
MOST_BYTES = 20 << 30
FREE_SHARE = 0.1


def disk_folder(settings: Settings) -> Path:
    return settings.disk_dir or settings.data_dir / FOLDER_NAME


def disk_quota(settings: Settings) -> int:
    """Bytes. By itself 20 GiB, or a tenth of what is free (or taken by the tier) if that is less."""
    if settings.disk_bytes != AUTO:
        return settings.disk_bytes
    folder = there = disk_folder(settings)
    while not there.exists():
        there = there.parent
    held = sum(file.stat().st_size for file in folder.glob("*") if file.is_file()) if folder.is_dir() else 0
    return min(MOST_BYTES, int((shutil.disk_usage(there).free + held) * FREE_SHARE))
