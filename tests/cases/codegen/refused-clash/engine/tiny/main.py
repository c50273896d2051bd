def run(_cfac):
    return 1
