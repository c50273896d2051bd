import functools


class Engine:
    @property
    @functools.cache
    def first(self):
        @functools.wraps(print)
        def inner():
            return 1

        return inner()

    @staticmethod
    def run(registry):
        value = 1

        @functools.cache
        @registry.register(
            "name",
        )
        def handler():
            return value

        return handler
