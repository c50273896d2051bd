import a1
import b.c
from c import *
from d import D
from e import E
from f import F
from g import G
from h import H
from i import I; from i2 import I2

try:
    from j import J
except ImportError:
    J = None
from k import K
from l import L
from m import M
from n import N


class Child(D):
    pass


def annotated(x: E):
    return x


F = 2
twice = lambda: G


def default(x=H):
    return x


def binds():
    global K
    K = 1


class Model:
    field: L = None


def short(): return M


if N:
    pass
