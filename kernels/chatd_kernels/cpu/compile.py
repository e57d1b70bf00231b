"""The process that compiles: ``python -m chatd_kernels.cpu.compile`` with a kernel an argument.

An argument is the repr of (path, module, function, its arguments). A line is printed for each that is done.
"""

import ast
import ctypes
import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba import cfunc, types
from numba.core.errors import NumbaWarning

from chatd_kernels.cpu import simd
from chatd_kernels.cpu.isa import host_isa
from chatd_kernels.cpu.library import target_machine


def machine_code(module: str, make: str, args: tuple[int | str, ...]) -> bytes:
    """An object file whose function `library.ENTRY` is the kernel."""
    isa = host_isa()
    simd.compile_for(isa)
    body: Any = getattr(importlib.import_module(f"chatd_kernels.cpu.{module}_kernels"), make)(*args)
    compiled = cfunc(types.void(types.int64), error_model="numpy")(body)
    code = binding.parse_assembly(compiled.inspect_llvm())
    wrapper = code.get_function(compiled.native_name)
    inner = code.get_function(compiled.native_name.removeprefix("cfunc."))
    code.link_in(binding.parse_assembly(_ENTRY.format(inner=inner.name)))
    # numba's own way in turns errors into Python's: without it there is nothing to link with.
    wrapper.linkage = inner.linkage = "internal"
    machine = target_machine(isa, jit=True)
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(code, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(3)))
    foreign = {f.name for f in code.functions if f.is_declaration and not f.name.startswith("llvm.")}
    if foreign - {"chatd_syscall"}:
        raise RuntimeError(f"{make} may raise or calls for help: {', '.join(sorted(foreign))}")
    return bytes(machine.emit_object(code))


_ENTRY = """
declare i32 @"{inner}"(ptr, ptr, i64)
define void @chatd_kernel(i64 %p) {{
  %result = alloca ptr
  %error = alloca ptr
  %status = call i32 @"{inner}"(ptr %result, ptr %error, i64 %p)
  ret void
}}
"""


def main(lines: list[str]) -> None:
    warnings.simplefilter("ignore", NumbaWarning)
    # numba makes code that it could run at once: nobody will.
    binding.add_symbol("chatd_syscall", ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    for line in lines:
        path, module, make, args = ast.literal_eval(line)
        code, target = machine_code(module, make, args), Path(path)
        fresh = target.with_name(f"{target.name}.{id(code)}")
        fresh.write_bytes(code)
        fresh.replace(target)  # whoever compiles the same at the same time: the last one's stays
        print(target.name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
