"""requests-oauthlib, used as documented."""

import requests
from oauthlib.oauth2 import DeviceClient, OAuth2Error
from requests_oauthlib import OAuth2Session

from walkthrough import CERTIFICATE, CLIENT_ID, SCOPE, URL, error_of, expect, report, wait

metadata = requests.get(f"{URL}/.well-known/oauth-authorization-server", timeout=20).json()
expect("the issuer is the one asked for", metadata["issuer"] == URL)
TOKEN = metadata["token_endpoint"]
report("discovery")


def begin():
    response = requests.post(
        metadata["device_authorization_endpoint"],
        data={"client_id": CLIENT_ID, "scope": SCOPE},
        timeout=20,
    )
    response.raise_for_status()
    return response.json()


def session_for():
    return OAuth2Session(client=DeviceClient(CLIENT_ID, scope=SCOPE.split()))


def poll(session, codes):
    return session.fetch_token(TOKEN, include_client_id=True, device_code=codes["device_code"])


session = session_for()
codes = begin()
report(error_of(lambda: poll(session, codes), OAuth2Error))
report(error_of(lambda: poll(session, codes), OAuth2Error))
wait("approve", user_code=codes["user_code"], seconds=codes["interval"] + 5)
first = poll(session, codes)
report("granted", token=first["access_token"])

expect("a protected call passes", session.get(f"{URL}/files/1").status_code == 200)
report("called")

second = session.refresh_token(TOKEN, refresh_token=first["refresh_token"], client_id=CLIENT_ID)
expect("a new pair", second["access_token"] != first["access_token"])
third = session.refresh_token(TOKEN, refresh_token=second["refresh_token"], client_id=CLIENT_ID)
report("refreshed")


def introspect(token):
    return requests.post(
        metadata["introspection_endpoint"], data={"token": token}, cert=CERTIFICATE, timeout=20
    ).json()


expect("it is active", introspect(third["access_token"])["active"] is True)
report("introspected")

replayed = error_of(
    lambda: session.refresh_token(TOKEN, refresh_token=first["refresh_token"], client_id=CLIENT_ID),
    OAuth2Error,
)
expect("a replay is invalid_grant", replayed == "invalid_grant")
expect("and ends the grant", introspect(third["access_token"]) == {"active": False})
report("replayed")

other = session_for()
codes = begin()
wait("approve", user_code=codes["user_code"], seconds=0)
token = poll(other, codes)
expect("it works", other.get(f"{URL}/files/1").status_code == 200)
url, headers, body = other._client.prepare_token_revocation_request(
    metadata["revocation_endpoint"], token["refresh_token"], "refresh_token"
)
expect("revoked", requests.post(url, headers=headers, data=body, timeout=20).status_code == 200)
expect("it works no more", other.get(f"{URL}/files/1").status_code == 401)
report("revoked")
