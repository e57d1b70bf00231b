"""A whole toy server in a process of its own: ``python -m tests.support.toy_server DATA_DIR DRAIN_S STEP_S``.

Prints its port, then serves until a signal. Each engine step takes STEP_S seconds.
"""

import asyncio
import sys
import time
from pathlib import Path

from chatd.server.app import ChatdServer, bind, create_app, server_config
from tests.support.chat_lab import chat_lab
from tests.support.engines import ChecksumRunner
from tests.support.live_server import new_state


async def main(data_dir: Path, drain_s: float, step_s: float) -> None:
    runner = ChecksumRunner(1024, 16)
    runner.before_step = lambda plan: time.sleep(step_s)
    async with chat_lab(data_dir, runner) as lab:
        state = new_state(lab.store, lab.service, drain_timeout_s=drain_s)
        listener = bind(state.settings)
        config = server_config(create_app(state), state.settings)
        await ChatdServer(config, state, lambda: print(listener.getsockname()[1], flush=True)).serve(
            [listener]
        )
    print("settled", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
