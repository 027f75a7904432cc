"""Authlib as a resource server: introspects tokens (RFC 7662) and validates JWTs (RFC 9068). Prints each result as a line of JSON."""

import json
import os

import requests
from authlib.integrations.requests_client import OAuth2Session
from authlib.oauth2.rfc6750 import InsufficientScopeError, InvalidTokenError
from authlib.oauth2.rfc7523 import PrivateKeyJWT
from authlib.oauth2.rfc7662 import IntrospectTokenValidator
from authlib.oauth2.rfc9068 import JWTBearerTokenValidator

ISSUER = os.environ["ISSUER"]
SECRET = os.environ["CLIENT_SECRET"]
TOKEN = os.environ["ACCESS_TOKEN"]
METADATA = requests.get(f"{ISSUER}/.well-known/oauth-authorization-server", timeout=30).json()
ENDPOINT = METADATA["introspection_endpoint"]

with open(os.environ["SIGNING_KEY"], encoding="ascii") as file:
    SIGNING_KEY = file.read()

sessions = {
    "client_secret_basic": OAuth2Session("files-api", SECRET, token_endpoint_auth_method="client_secret_basic"),
    "client_secret_post": OAuth2Session("files-api", SECRET, token_endpoint_auth_method="client_secret_post"),
    # Authlib uses the endpoint as the audience.
    "private_key_jwt": OAuth2Session("signing-api", SIGNING_KEY, token_endpoint_auth_method=PrivateKeyJWT(ENDPOINT)),
}


class Introspection(IntrospectTokenValidator):
    def __init__(self, session):
        super().__init__()
        self.session = session

    def introspect_token(self, token_string):
        response = self.session.introspect_token(ENDPOINT, token=token_string, token_type_hint="access_token")
        response.raise_for_status()
        return response.json()


class Jwt(JWTBearerTokenValidator):
    def get_jwks(self):
        return requests.get(METADATA["jwks_uri"], timeout=30).json()


def check(validator, token, scope):
    """`scope` as Authlib takes it: a list whose items are alternatives, each with all that is needed."""
    try:
        validator.validate_token(validator.authenticate_token(token), [scope], None)
        return "accepted"
    except InsufficientScopeError:
        return "insufficient_scope"
    except InvalidTokenError:
        return "invalid_token"


validators = {method: Introspection(session) for method, session in sessions.items()}
validators["jwt"] = Jwt(issuer=ISSUER, resource_server=ISSUER)
for name, validator in validators.items():
    results = {
        scope: check(validator, TOKEN, scope)
        for scope in ("files:read", "reports:read", "reports:write", "files:read reports:write", "admin:manage")
    }
    results["altered"] = check(validator, f"{TOKEN[:-8]}AAAAAAAA", "files:read")
    print(json.dumps({"validator": name, "results": results}), flush=True)
