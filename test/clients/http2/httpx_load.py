"""Sends requests with httpx until its input ends. Prints "ok" or the failure of each request as a line."""

import asyncio
import os
import ssl
import sys
import threading
import time

import httpx

URL = os.environ["GATEHOUSE_URL"]
CONCURRENCY = int(os.environ["CONCURRENCY"])
PAUSE = float(os.environ["PAUSE_SECONDS"])
context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
stopped = threading.Event()


def report(response):
    is_ok = (response.status_code, response.http_version, response.text) == (200, "HTTP/2", "ok")
    print("ok" if is_ok else f"{response.http_version} {response.status_code} {response.text}", flush=True)


def report_error(error):
    print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


async def request_asynchronously():
    async with httpx.AsyncClient(http2=True, verify=context, timeout=30) as client:

        async def request_some():
            while not stopped.is_set():
                try:
                    report(await client.get(URL))
                except httpx.HTTPError as error:
                    report_error(error)
                await asyncio.sleep(PAUSE)

        await asyncio.gather(*(request_some() for _ in range(CONCURRENCY)))


def request_synchronously():
    with httpx.Client(http2=True, verify=context, timeout=30) as client:
        while not stopped.is_set():
            try:
                report(client.get(URL))
            except httpx.HTTPError as error:
                report_error(error)
            time.sleep(PAUSE)


def wait_for_end():
    sys.stdin.read()
    stopped.set()


threading.Thread(target=wait_for_end, daemon=True).start()
if CONCURRENCY == 0:
    request_synchronously()
else:
    asyncio.run(request_asynchronously())
