def run(config, *, rank=0):
    if not config:
        raise ValueError
    return config


def other():
    return go()
