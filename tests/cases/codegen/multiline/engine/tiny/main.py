def load(config, pool, rank):
    result = build(
        config,  # é
        [
            1,
        ],
    )
    text = "é"; future = pool.submit(
        result,
    )
    if config:
        total = (
            future.result()
            + finish(total=1)
        )  # trailing
    # a comment that stays behind
    return total
