def run(x):
    try:
        if x:
            return x.value, None
        elif x is None:
            return
    except ValueError:
        raise

    def nested():
        return work()

    return nested


def loop(x):
    while True:
        if x.poll():
            return True
