"""What a compiled kernel takes of a multiprocessor, read from its machine code.

NVIDIA's resource report shows no local memory where the code has it, so spills are counted in the code.
"""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

import triton

NVIDIA_MATRIX = re.compile(r"\b((?:UTC)?[A-Z]{1,2}MMA|UTC[A-Z]+MMA)\b")
AMD_MATRIX = re.compile(r"\b(v_s?mfmac?_\w+)")
AMD_SPILL = re.compile(r"\bscratch_(?:load|store)")
SPILL = re.compile(r"\b(?:STL|LDL)\b")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a multiprocessor: bytes of shared memory in all and for one program, registers, warps, programs."""

    shared: int
    program_shared: int
    registers: int
    warps: int
    programs: int
    warp_size: int


LIMITS: dict[int | str, Limits] = {
    80: Limits(164 << 10, 163 << 10, 65536, 64, 32, 32),
    90: Limits(228 << 10, 227 << 10, 65536, 64, 32, 32),
    100: Limits(228 << 10, 227 << 10, 65536, 64, 32, 32),
    # 4 SIMDs, each with 512 registers of 64 lanes and 8 waves.
    "gfx942": Limits(64 << 10, 64 << 10, 4 * 512 * 64, 32, 16, 64),
}
SYSTEM_SHARED = 1024
"""Shared memory the driver takes of each program on NVIDIA, in bytes."""
TENSOR_COLUMNS = 512
"""Of sm_100's tensor memory; a program's accumulators are allocated there."""


@dataclass(frozen=True, slots=True)
class Report:
    """``matrix``: instructions by name. ``occupancy``: share of the most warps that can be resident."""

    registers: int
    spills: int
    shared: int
    matrix: dict[str, int]
    programs: int
    occupancy: float


def report(compiled: Any, arch: int | str, num_warps: int) -> Report:
    """``compiled`` is what `triton.compile` gave for ``arch``."""
    registers, spills, matrix = _nvidia(compiled) if isinstance(arch, int) else _amd(compiled)
    limits, shared = LIMITS[arch], int(compiled.metadata.shared)
    bounds = [limits.warps // num_warps, limits.programs]
    unit = 8  # registers of a lane are given out in eights
    bounds.append(limits.registers // (-(-registers // unit) * unit * limits.warp_size * num_warps))
    taken = shared + (SYSTEM_SHARED if isinstance(arch, int) else 0)
    if taken:
        bounds.append(limits.shared // taken)
    columns = int(getattr(compiled.metadata, "tmem_size", 0) or 0)
    if columns:
        bounds.append(TENSOR_COLUMNS // columns)
    programs = min(bounds)
    return Report(registers, spills, shared, matrix, programs, programs * num_warps / limits.warps)


def _nvidia(compiled: Any) -> tuple[int, int, dict[str, int]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool(triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        code = _tool(triton.knobs.nvidia.nvdisasm.path, "-c", file.name)
    registers = re.search(r"REG:(\d+)", usage)
    if registers is None:
        raise ValueError(f"no register count in the resource report: {usage!r}")
    return int(registers.group(1)), len(SPILL.findall(code)), dict(Counter(NVIDIA_MATRIX.findall(code)))


def _amd(compiled: Any) -> tuple[int, int, dict[str, int]]:
    code = compiled.asm["amdgcn"]

    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", code)
        return int(found.group(1)) if found else 0

    # Scalar registers spill to lanes of vector registers, which `vgpr_count` counts: no memory is touched.
    spills = max(field("vgpr_spill_count"), len(AMD_SPILL.findall(code)))
    # Accumulation registers come out of the same 512.
    return field("vgpr_count") or 1, spills, dict(Counter(AMD_MATRIX.findall(code)))


def _tool(path: str, *args: str) -> str:
    return subprocess.run([path, *args], check=True, capture_output=True, text=True).stdout
