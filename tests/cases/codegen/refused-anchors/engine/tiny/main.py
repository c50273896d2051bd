class Executor:
    def _init_executor_renamed(self):
        handle = self.queue.export_handle()
        return handle


def f(worker):
    worker.start()
    worker.shutdown()
    worker.queue.shutdown()
    xstart()


def g():
    pass
