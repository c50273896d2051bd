async def make_config(arguments):
    return dict(arguments)


async def main(arguments):
    config = await make_config(arguments)
    return config
