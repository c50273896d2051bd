def run(command):
    match parse(command):
        case [1, *rest]:
            one(rest)
        case {"two": name, **more}:
            return name
        case _:
            pass
