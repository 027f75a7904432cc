"""What the stories have in common: they tell each step on a line of JSON, and wait where somebody else has to act."""

import json
import os
import sys

URL = os.environ["GATEHOUSE_URL"]
CERTIFICATE = (os.environ["CLIENT_CERTIFICATE"], os.environ["CLIENT_KEY"])
CLIENT_ID = "report-runner"
SCOPE = "files:read reports:read"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def tell(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


def wait(step, **facts):
    """Until the other side has done what this step asks of it."""
    tell(step, **facts)
    assert sys.stdin.readline().strip() == "done", step


def expect(what, truth):
    if not truth:
        raise AssertionError(what)


def error_of(run, *kinds):
    """The OAuth error code that this call fails with."""
    try:
        run()
    except kinds as error:
        return error.error
    raise AssertionError("it should have been refused")
