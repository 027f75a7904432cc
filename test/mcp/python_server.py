"""An MCP server as the documentation of the SDK describes it: nothing about authorization."""

import sys

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("tools")
# Between two steps of `count`, until `next` is called.
step = anyio.Event()


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers"""
    return str(a + b)


@server.tool()
def whoami(context: Context) -> str:
    """Who calls"""
    return context.headers["x-forwarded-preferred-username"]


@server.tool()
async def count(to: int, context: Context) -> str:
    """Reports each step, and waits for next"""
    global step
    for progress in range(1, to + 1):
        step = anyio.Event()
        await context.report_progress(progress, to)
        await step.wait()
    return "done"


@server.tool()
async def next() -> str:
    """Continues count"""
    step.set()
    return "ok"


uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
