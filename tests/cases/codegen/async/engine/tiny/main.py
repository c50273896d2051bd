async def serve(client):
    reply = await client.start(
        1
    )
    async for _ in client:
        await listen(client)
    return await client.stop()
