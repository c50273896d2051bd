"""The config is made late, inside of other calls."""


def make_config(arguments):
    return dict(arguments)


def main(arguments):
    arguments = list(arguments)
    prepare()
    return run([x for x in [make_config(arguments)] if x], arguments)


def prepare():
    pass


def run(configs, arguments):
    config = configs[0]
    return config
