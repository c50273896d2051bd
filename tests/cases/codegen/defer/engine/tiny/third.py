import fast


def only_inside():
    return fast.compile(only_inside)
