def run(config):
    if config.fast:
        prepare()
        go()
    else:
        go_slowly(config)
    return finish()


def other(config):
    poll()
    config.read()
    return config


def last():
    work()
