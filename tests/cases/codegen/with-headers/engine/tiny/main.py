def run(config):
    with connect(
        config,
    ) as addresses:
        # a comment
        use(addresses)
    with first() as a, second(a) as b:

        use(b)


async def serve(args):
    async with (
        client(args) as engine,
    ):
        await engine.start()
