"""The same as coroutines (the paper's Figure 16)."""

import asyncio


async def A_init1():
    print("A: first step")
    await asyncio.sleep(0.2)
    return "what A found out"


async def A_init2():
    print("A: second step")
    await asyncio.sleep(0.2)


async def B_init1():
    print("B: first step, beside A's")
    await asyncio.sleep(0.1)


async def B_init2(step):
    print(f"B: second step, with {step.values['A.A1']!r}")
    await asyncio.sleep(0.1)
