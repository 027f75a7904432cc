"""The walkthrough with httpx (walkthrough.ts). Prints each step as a line of JSON."""

import asyncio
import hashlib
import json
import os
import ssl

import httpx

BASE = os.environ["GATEHOUSE_URL"]
ITEMS = int(os.environ["ITEMS"])
CONCURRENCY = int(os.environ["CONCURRENCY"])


def report(step, response, body=None):
    line = {"step": step, "status": response.status_code, "version": response.http_version}
    print(json.dumps(line if body is None else {**line, "body": body}), flush=True)


async def request_items(client, headers):
    correct = 0
    numbers = iter(range(1, ITEMS + 1))

    async def request_some():
        nonlocal correct
        for number in numbers:
            response = await client.get(f"/files/item/{number}", headers=headers)
            expected = (200, "HTTP/2", f"item {number}\n")
            correct += (response.status_code, response.http_version, response.text) == expected

    await asyncio.gather(*(request_some() for _ in range(CONCURRENCY)))
    print(json.dumps({"step": "items", "status": 200, "version": "HTTP/2", "body": str(correct)}))


async def main():
    context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
    context.load_cert_chain(os.environ["CLIENT_CERTIFICATE"], os.environ["CLIENT_KEY"])
    async with httpx.AsyncClient(http2=True, verify=context, base_url=BASE, timeout=120) as client:
        granted = await client.post("/authsvc/Authorize/Certificate", json=json.loads(os.environ["TOKEN_REQUEST"]))
        report("token", granted)
        headers = {"Authorization": f"Bearer {granted.json()['access_token']}"}
        called = await client.get("/files/welcome", headers=headers)
        report("call", called, called.text)
        with open(os.environ["UPLOAD_FILE"], "rb") as file:
            content = file.read()
        report("refused", await client.get("/files/welcome"))
        report("refused-body", await client.post("/reports/digest", content=os.environ["SMALL_BODY"]))
        report("refused-upload", await client.post("/reports/digest", content=content))
        uploaded = await client.post("/reports/digest", headers=headers, content=content)
        report("upload", uploaded, uploaded.text)
        downloaded = await client.get("/files/large", headers=headers)
        report("download", downloaded, hashlib.sha256(downloaded.content).hexdigest())
        await request_items(client, headers)


asyncio.run(main())
