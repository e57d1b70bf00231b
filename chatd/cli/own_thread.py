"""A thread for one call, gone when it is over."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(function: Callable[[], T], name: str) -> T:
    """What ``function`` returns, from a thread of its own that ends with it.

    For work with torch before the engine starts. A thread that has run torch keeps a team of OpenMP workers
    for as long as it lives, and with more workers than cores libgomp lets them sleep between operations
    instead of spinning: a decode step of SmolLM2 then took 29 ms instead of 15 (2 cores, 1 row). A
    shared pool's threads live on; this one does not. Cancelled, the function runs to its end unheard.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, function)
    finally:
        pool.shutdown(wait=False)
