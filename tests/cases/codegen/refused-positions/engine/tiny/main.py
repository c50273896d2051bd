def f(x):
    if one(x): pass
    if x:
        pass
    elif two(x):
        pass
    while three(x):
        pass
    a = lambda: four(x)
    b = [five(y) for y in x]
    c = x and six(x)
    d = seven(x) if x else 1
    e = 1 < x < eight(x)
    for y in nine(x):
        pass
    with first(x) as g, second(x) as h:
        pass
    semi(x); colon(x)
    if header(x):
        pass
    i = f"{text(x)}"
    assert checked(x)
    match x:
        case 1 if guard(x):
            pass
    return kept(x)


def short(): return 1


def forever():
    while True:
        pass


class C:
    pass
