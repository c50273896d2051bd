"""The work of the paper's Figure 3: two components, two steps each."""

import time


def A_init1():
    print("A: first step")
    time.sleep(0.2)
    return "what A found out"


def A_init2():
    print("A: second step")
    time.sleep(0.2)


def B_init1():
    print("B: first step, beside A's")
    time.sleep(0.1)


def B_init2(step):
    print(f"B: second step, with {step.values['A.A1']!r}")
    time.sleep(0.1)
