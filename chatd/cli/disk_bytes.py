"""How much of a disk the tier takes when nobody says."""

import shutil
from pathlib import Path

MOST_BYTES = 20 << 30
FREE_SHARE = 0.1


def auto_disk_bytes(folder: Path) -> int:
    """20 GiB, or a tenth of what is free (with what the folder holds already) if that is less."""
    there = folder
    while not there.exists():
        there = there.parent
    held = sum(file.stat().st_size for file in folder.glob("*") if file.is_file()) if folder.is_dir() else 0
    return min(MOST_BYTES, int((shutil.disk_usage(there).free + held) * FREE_SHARE))
