"""Authlib signs a user in with the authorization code flow and PKCE. Prints each step as a line of JSON."""

import json
import os
import sys

import requests
from authlib.common.security import generate_token
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.requests_client import OAuth2Session

URL = os.environ["GATEHOUSE_URL"]
SECRET = os.environ["CLIENT_SECRET"]
CALLBACK = "https://app.example.test/callback"
metadata = requests.get(f"{URL}/.well-known/oauth-authorization-server", timeout=20).json()


def report(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


def authorize(session):
    verifier = generate_token(48)
    url, _ = session.create_authorization_url(metadata["authorization_endpoint"], code_verifier=verifier)
    report("open", url=url)
    return sys.stdin.readline().strip(), verifier


for client, secret, method in (
    ("python", None, "none"),
    ("python-web", SECRET, "client_secret_basic"),
    ("python-web", SECRET, "client_secret_post"),
):
    session = OAuth2Session(
        client, secret, scope="files:read", redirect_uri=CALLBACK, code_challenge_method="S256",
        token_endpoint_auth_method=method,
    )
    response, verifier = authorize(session)
    token = session.fetch_token(
        metadata["token_endpoint"], authorization_response=response, code_verifier=verifier
    )
    assert session.get(f"{URL}/files/1").status_code == 200
    session.refresh_token(metadata["token_endpoint"], refresh_token=token["refresh_token"])
    try:
        session.fetch_token(metadata["token_endpoint"], authorization_response=response, code_verifier=verifier)
        raise AssertionError("the code was accepted twice")
    except OAuthError as error:
        assert error.error == "invalid_grant", error
    assert session.get(f"{URL}/files/1").status_code == 401
    report("done", client=client, method=method)
