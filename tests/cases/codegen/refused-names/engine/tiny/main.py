from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from x import Typed


def f(config, rank):
    work()
    later = 1
    if config:
        branch = later
    else:
        other()
    try:
        pass
    except ValueError as error:
        pass
    last()


class C:
    attribute = 1

    def m(self):
        pass


work = f
work()
TAIL = 1
