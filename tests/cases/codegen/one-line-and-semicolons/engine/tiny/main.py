def run(x):
    first(); second()
    if check(x): return None
    if x: short(x)
    return x
