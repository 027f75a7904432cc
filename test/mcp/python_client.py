"""The client of the Python SDK. Each line of output is a step; some wait for a line of input."""

import json
import os
import ssl
import sys
import time
from urllib.parse import parse_qs, urlparse

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

CLIENT_ID = os.environ.get("CLIENT_ID")
REDIRECT_URI = os.environ["REDIRECT_URI"]
now = time.time


async def report(step: str, **more: object) -> None:
    print(json.dumps({"step": step, **more}), flush=True)


async def ask(step: str, **more: object) -> str:
    await report(step, **more)
    return (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()


class Storage:
    """A client that is registered at gatehouse: dynamic registration is skipped."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = (
        OAuthClientInformationFull(
            client_id=CLIENT_ID, redirect_uris=[REDIRECT_URI], token_endpoint_auth_method="none"
        )
        if CLIENT_ID
        else None
    )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens
        await report("tokens", scope=tokens.scope, token=tokens.access_token)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client: OAuthClientInformationFull) -> None:
        self.client = client


class Browser:
    response = ""
    is_open = True

    async def redirect(self, url: str) -> None:
        if not self.is_open:
            await report("approval needed")
            raise OAuthFlowError("the user is not there")
        self.response = await ask("authorize", url=url)

    async def callback(self) -> AuthorizationCodeResult:
        query = parse_qs(urlparse(self.response).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0], iss=query["iss"][0])


async def main() -> None:
    browser = Browser()
    provider = OAuthClientProvider(
        server_url=os.environ["MCP_URL"],
        client_metadata=OAuthClientMetadata(
            client_name="Python client",
            redirect_uris=[REDIRECT_URI],
            token_endpoint_auth_method="none",
        ),
        storage=Storage(),
        redirect_handler=browser.redirect,
        callback_handler=browser.callback,
        client_metadata_url=os.environ.get("CLIENT_METADATA_URL"),
    )
    tls = ssl.create_default_context(cafile=os.environ["CA_FILE"])
    async with httpx2.AsyncClient(auth=provider, verify=tls, timeout=httpx2.Timeout(30, read=300)) as http:
        try:
            async with Client(streamable_http_client(os.environ["MCP_URL"], http_client=http)) as client:
                await report("connected", version=client.protocol_version)
                await use(client, browser)
        except* OAuthFlowError:
            await report("refused")


async def call(client: Client, tool: str, arguments: dict | None = None, **more: object) -> str:
    result = await client.call_tool(tool, arguments or {}, **more)
    return result.content[0].text


async def use(client: Client, browser: Browser) -> None:
    tools = await client.list_tools()
    await report("tools", names=sorted(tool.name for tool in tools.tools))
    await report("added", text=await call(client, "add", {"a": 2, "b": 3}))
    await report("caller", text=await call(client, "whoami"))

    async with anyio.create_task_group() as group:

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            await report("progress", value=progress)
            group.start_soon(call, client, "next")

        text = await call(client, "count", {"to": 3}, progress_callback=on_progress)
    await report("counted", text=text)

    seconds = int(await ask("wait for expiry"))
    time.time = lambda: now() + seconds
    await report("after expiry", text=await call(client, "add", {"a": 4, "b": 5}))

    streaming = anyio.Event()
    cut = anyio.Event()

    async def on_first_progress(progress: float, total: float | None, message: str | None) -> None:
        streaming.set()

    async def stream() -> None:
        try:
            await call(client, "count", {"to": 9}, progress_callback=on_first_progress)
        except Exception as error:
            await report("cut", error=str(error))
        cut.set()

    async with anyio.create_task_group() as group:
        group.start_soon(stream)
        await streaming.wait()
        browser.is_open = False
        await ask("wait for revocation")
        await cut.wait()
    await call(client, "add", {"a": 1, "b": 1})


anyio.run(main)
