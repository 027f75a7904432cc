"""Authlib authenticates clients and exchanges tokens. Prints each access token as a line of JSON."""

import json
import os

from authlib.integrations.requests_client import OAuth2Session
from authlib.oauth2.rfc7523 import PrivateKeyJWT

TOKEN = os.environ["TOKEN_ENDPOINT"]
SECRET = os.environ["CLIENT_SECRET"]
SUBJECT_TOKEN = os.environ["SUBJECT_TOKEN"]


def report(token):
    print(json.dumps({"token": token["access_token"]}), flush=True)


for method in ("client_secret_basic", "client_secret_post"):
    session = OAuth2Session("billing", SECRET, token_endpoint_auth_method=method)
    report(session.fetch_token(TOKEN, grant_type="client_credentials", scope="files:read"))

with open(os.environ["SIGNING_KEY"], encoding="ascii") as file:
    session = OAuth2Session("signing", file.read(), token_endpoint_auth_method=PrivateKeyJWT(TOKEN))
report(session.fetch_token(TOKEN, grant_type="client_credentials"))

session = OAuth2Session("pods", token_endpoint_auth_method="none")
report(session.fetch_token(
    TOKEN,
    grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
    subject_token=SUBJECT_TOKEN,
    subject_token_type="urn:ietf:params:oauth:token-type:jwt",
))
report(session.fetch_token(
    TOKEN,
    grant_type="urn:ietf:params:oauth:grant-type:jwt-bearer",
    assertion=SUBJECT_TOKEN,
))
