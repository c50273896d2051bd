def start(path):
    config = read(path)
    run(core, config)
    serve(config)


def core(config):
    load(config)


def load(config):
    return config


def serve(config):
    pass


def run(target, config):
    target(config)


def read(path):
    return path
