def run():
    if 1:
        work()