"""An `echo` through our SWE-ReX runtime against SWE-ReX's local one, in turns: medians and their ratio.

Run: python -m benchmarks.rex [ROUNDS]. Needs the extra rex and a quiet machine.
"""

import asyncio
import statistics
import sys
import time

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

from sandbox.rex import MiniSandboxDeployment


async def echo_ms(deployment: AbstractDeployment, number: int) -> tuple[float, bool]:
    started = time.perf_counter()
    action = BashAction(command=f"echo {number}", timeout=60, check="silent")
    seen = await deployment.runtime.run_in_session(action)
    right = seen.output.strip() == str(number) and seen.exit_code == 0
    return (time.perf_counter() - started) * 1e3, right


async def main(rounds: int) -> None:
    sides: dict[str, AbstractDeployment] = {"local": LocalDeployment(), "mini": MiniSandboxDeployment()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    wrong = dict.fromkeys(sides, 0)
    try:
        for deployment in sides.values():
            await deployment.start()
            await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
        for number in range(rounds):
            for name, deployment in sides.items():
                spent, right = await echo_ms(deployment, number)
                times[name].append(spent)
                wrong[name] += not right
    finally:
        for deployment in sides.values():
            await deployment.stop()
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.2f} ms an echo, {wrong[name]} of {rounds} wrong")
    print(f"ratio local/mini: {medians['local'] / medians['mini']:.0f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
