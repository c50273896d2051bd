import fast

twice()
twice()


@fast.compile
def run():
    inside()
