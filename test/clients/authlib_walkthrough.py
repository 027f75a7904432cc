"""Authlib, used as documented."""

import requests
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata, get_well_known_url

from walkthrough import CERTIFICATE, CLIENT_ID, DEVICE_GRANT, SCOPE, URL, error_of, expect, report, wait

ISSUER = f"{URL}/authsvc"
found = requests.get(get_well_known_url(ISSUER, external=True), timeout=20).json()
metadata = AuthorizationServerMetadata(found)
for check in ("issuer", "token_endpoint", "jwks_uri", "revocation_endpoint", "introspection_endpoint"):
    getattr(metadata, f"validate_{check}")()
expect("the issuer is the one asked for", metadata["issuer"] == ISSUER)
TOKEN = metadata["token_endpoint"]
report("discovery")


def session_for(cert=None):
    session = OAuth2Session(CLIENT_ID, scope=SCOPE, token_endpoint_auth_method="none")
    session.cert = cert
    return session


def begin(session):
    response = session.post(
        metadata["device_authorization_endpoint"],
        data={"client_id": CLIENT_ID, "scope": SCOPE},
        withhold_token=True,
    )
    response.raise_for_status()
    return response.json()


def poll(session, codes):
    return session.fetch_token(TOKEN, grant_type=DEVICE_GRANT, device_code=codes["device_code"])


session = session_for()
codes = begin(session)
report(error_of(lambda: poll(session, codes), OAuthError))
report(error_of(lambda: poll(session, codes), OAuthError))
wait("approve", user_code=codes["user_code"], seconds=codes["interval"] + 5)
first = poll(session, codes)
report("granted", token=first["access_token"])

expect("a protected call passes", session.get(f"{URL}/files/1").status_code == 200)
report("called")

second = session.refresh_token(TOKEN, refresh_token=first["refresh_token"])
expect("a new pair", second["access_token"] != first["access_token"])
third = session.refresh_token(TOKEN, refresh_token=second["refresh_token"])
report("refreshed")

server = session_for(CERTIFICATE)


def introspect(token):
    return server.introspect_token(metadata["introspection_endpoint"], token=token).json()


expect("it is active", introspect(third["access_token"])["active"] is True)
report("introspected")

replayed = error_of(lambda: session.refresh_token(TOKEN, refresh_token=first["refresh_token"]), OAuthError)
expect("a replay is invalid_grant", replayed == "invalid_grant")
expect("and ends the grant", introspect(third["access_token"]) == {"active": False})
report("replayed")

other = session_for()
codes = begin(other)
wait("approve", user_code=codes["user_code"], seconds=0)
token = poll(other, codes)
expect("it works", other.get(f"{URL}/files/1").status_code == 200)
response = other.revoke_token(metadata["revocation_endpoint"], token=token["access_token"])
expect("revoked", response.status_code == 200)
expect("it works no more", other.get(f"{URL}/files/1").status_code == 401)
report("revoked")

machine = session_for(CERTIFICATE).fetch_token(TOKEN, grant_type="client_credentials", scope="files:read")
expect("no refresh token", "refresh_token" not in machine)
expect("it works", requests.get(
    f"{URL}/files/1", headers={"Authorization": f"Bearer {machine['access_token']}"}, timeout=20
).status_code == 200)
report("certified")
