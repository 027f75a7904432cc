"""Shared by the walkthroughs. Each prints every step as a line of JSON and waits if the test must act."""

import json
import os
import sys

URL = os.environ["GATEHOUSE_URL"]
CERTIFICATE = (os.environ["CLIENT_CERTIFICATE"], os.environ["CLIENT_KEY"])
CLIENT_ID = "report-runner"
SCOPE = "files:read reports:read"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def report(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


def wait(step, **facts):
    """Waits until the test has done its part of the step."""
    report(step, **facts)
    assert sys.stdin.readline().strip() == "done", step


def expect(description, condition):
    if not condition:
        raise AssertionError(description)


def error_of(run, *kinds):
    """Returns the OAuth error code of a failing call."""
    try:
        run()
    except kinds as error:
        return error.error
    raise AssertionError("it should have been refused")
