"""What a package does when it is imported."""
import fast
from fast import compile

from . import lists


def change_compiler(level=1):
    lists.level = level


change_compiler(level=2)


@fast.compile
def bare(x):
    return x


@fast.compile(
    mode="best",  # kept where it is
)
@other
def options(x):
    return x


class Layer:
    @staticmethod
    @fast.compile(mode="good")
    def method(x):
        @fast.compile  # not at import: it runs when method is called
        def inner():
            return x

        return inner

    @fast.compile
    def items(self):
        yield 1

    @fast.compile
    async def coming(self):
        return 1


@fast.compile
class Whole:
    pass


if lists:
    assigned = fast.compile(bare, mode="best")
not_it = fast.compiler(bare)
not_a_decoration = fast.compile(mode="best")


def run():
    change_compiler(3)
    return fast.compile(bare)
