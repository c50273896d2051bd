from multiprocessing import get_context

from tiny.core import core_main


class Manager:
    def __init__(self, count):
        context = get_context("spawn")
        self.processes = []
        for index in range(count):
            self.processes.append(
                context.Process(
                    target=core_main,
                    name="Core",
                )
            )

    def wait(self):
        for process in self.processes:
            process.start()


def main():
    manager = Manager(1)
    manager.wait()
    serve(manager)


def serve(manager):
    pass
