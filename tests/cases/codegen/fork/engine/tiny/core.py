import multiprocessing


def core_main():
    launch(2)


def launch(count):
    lock = multiprocessing.get_context("spawn").Lock()
    queue = multiprocessing.get_context("spawn").Queue()
    return [make(rank, lock, queue) for rank in range(count)]


def make(rank, lock, queue):
    context = multiprocessing.get_context("spawn")
    return context.Process(target=worker_main, name=f"Worker-{rank}", args=(lock, queue))


def worker_main(lock, queue):
    return None
