// Obtains tokens with golang.org/x/oauth2 in every way that it supports and calls the API with each. Prints a line of JSON
// for each step. The CA is in SSL_CERT_FILE, which crypto/x509 reads.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/oauth2/google/externalaccount"
	"golang.org/x/oauth2/jws"
	"golang.org/x/oauth2/jwt"
)

const (
	tokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	jwtBearer     = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	tokenTypeJWT  = "urn:ietf:params:oauth:token-type:jwt"
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
)

var (
	base     = os.Getenv("GATEHOUSE_URL")
	tokenURL = base + "/authsvc/oauth2/token"
	secret   = os.Getenv("CLIENT_SECRET")
	// The issuer whose key is in SIGNING_KEY, and the audience that gatehouse expects of its tokens.
	issuer   = os.Getenv("ISSUER")
	audience = os.Getenv("AUDIENCE")
	subject  = os.Getenv("SUBJECT")
	keyID    = os.Getenv("SIGNING_KEY_ID")
	keyPEM   []byte
	key      *rsa.PrivateKey
)

type result struct {
	Step   string `json:"step"`
	Status int    `json:"status,omitempty"`
	Proto  string `json:"proto,omitempty"`
	Error  string `json:"error,omitempty"`
	Scope  any    `json:"scope,omitempty"`
	Issued any    `json:"issued_token_type,omitempty"`
	User   string `json:"user,omitempty"`
}

// report obtains a token, calls the API with it and prints the outcome.
func report(ctx context.Context, step string, source oauth2.TokenSource) *oauth2.Token {
	out := result{Step: step}
	defer func() { check(json.NewEncoder(os.Stdout).Encode(out)) }()
	token, err := source.Token()
	if err != nil {
		var refusal *oauth2.RetrieveError
		if !errors.As(err, &refusal) {
			out.Error = err.Error()
			return nil
		}
		out.Status, out.Error = refusal.Response.StatusCode, refusal.ErrorCode
		if out.Error == "" {
			out.Error = string(refusal.Body)
		}
		return nil
	}
	if !token.Valid() || token.Expiry.IsZero() {
		out.Error = fmt.Sprintf("not a valid token: type %q, expires %s", token.TokenType, token.Expiry)
		return nil
	}
	out.Scope, out.Issued = token.Extra("scope"), token.Extra("issued_token_type")
	response, err := oauth2.NewClient(ctx, oauth2.StaticTokenSource(token)).Get(base + "/files/1")
	check(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	check(err)
	out.Status, out.Proto = response.StatusCode, response.Proto
	var echo struct {
		Headers map[string]string `json:"headers"`
	}
	if response.StatusCode == http.StatusOK {
		check(json.Unmarshal(body, &echo))
	}
	out.User = echo.Headers["x-forwarded-user"]
	return token
}

func sign(claims *jws.ClaimSet) string {
	assertion, err := jws.Encode(&jws.Header{Algorithm: "RS256", Typ: "JWT", KeyID: keyID}, claims, key)
	check(err)
	return assertion
}

func foreignToken() string {
	return sign(&jws.ClaimSet{Iss: issuer, Sub: subject, Aud: audience, PrivateClaims: map[string]any{"jti": rand.Text()}})
}

type supplier struct{}

func (supplier) SubjectToken(context.Context, externalaccount.SupplierOptions) (string, error) {
	return foreignToken(), nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if os.Getenv("FLOW") == "code" {
		authorizationCode(ctx, "native", "", oauth2.AuthStyleInParams)
		authorizationCode(ctx, "desktop", secret, oauth2.AuthStyleInHeader)
		return
	}
	var err error
	keyPEM, err = os.ReadFile(os.Getenv("SIGNING_KEY"))
	check(err)
	block, _ := pem.Decode(keyPEM)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	check(err)
	key = parsed.(*rsa.PrivateKey)

	clientCredentials(ctx)
	bearer(ctx)
	exchange(ctx)
}

// authorizationCode is a native app: it listens on a loopback port, and the test is the browser of its user.
func authorizationCode(ctx context.Context, clientID, secret string, style oauth2.AuthStyle) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	config := &oauth2.Config{
		ClientID: clientID, ClientSecret: secret, Scopes: []string{"files:read"},
		Endpoint:    oauth2.Endpoint{AuthURL: base + "/authsvc/oauth2/authorize", TokenURL: tokenURL, AuthStyle: style},
		RedirectURL: "http://" + listener.Addr().String() + "/callback",
	}
	received := make(chan url.Values, 1)
	go http.Serve(listener, http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		received <- request.URL.Query()
		fmt.Fprint(response, "You can close this window.")
	}))
	verifier, state := oauth2.GenerateVerifier(), rand.Text()
	check(json.NewEncoder(os.Stdout).Encode(map[string]string{
		"step": "open", "url": config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier)),
	}))
	query := <-received
	if query.Get("state") != state || query.Get("iss") != base {
		panic("not the response to this request: " + query.Encode())
	}
	exchange := func(verifier string) oauth2.TokenSource {
		return sourceFunc(func() (*oauth2.Token, error) {
			return config.Exchange(ctx, query.Get("code"), oauth2.VerifierOption(verifier))
		})
	}
	report(ctx, clientID+": wrong verifier", exchange(oauth2.GenerateVerifier()))
	token := report(ctx, clientID+": exchange", exchange(verifier))
	if token == nil {
		return
	}
	expired := &oauth2.Token{RefreshToken: token.RefreshToken, Expiry: time.Now().Add(-time.Minute)}
	report(ctx, clientID+": refresh", config.TokenSource(ctx, expired))
	report(ctx, clientID+": second exchange", exchange(verifier))
	report(ctx, clientID+": after the second exchange", oauth2.StaticTokenSource(token))
}

type sourceFunc func() (*oauth2.Token, error)

func (source sourceFunc) Token() (*oauth2.Token, error) { return source() }

func clientCredentials(ctx context.Context) {
	configure := func(style oauth2.AuthStyle, secret string) *clientcredentials.Config {
		return &clientcredentials.Config{
			ClientID: "billing", ClientSecret: secret, TokenURL: tokenURL,
			Scopes: []string{"files:read"}, AuthStyle: style,
		}
	}
	report(ctx, "client_secret_basic", configure(oauth2.AuthStyleInHeader, secret).TokenSource(ctx))
	report(ctx, "client_secret_post", configure(oauth2.AuthStyleInParams, secret).TokenSource(ctx))
	report(ctx, "detected style", configure(oauth2.AuthStyleAutoDetect, secret).TokenSource(ctx))
	report(ctx, "wrong secret in the header", configure(oauth2.AuthStyleInHeader, secret+"x").TokenSource(ctx))
	report(ctx, "wrong secret in the body", configure(oauth2.AuthStyleInParams, secret+"x").TokenSource(ctx))

	// clientcredentials has no private_key_jwt, but sends additional parameters.
	assertion := &jws.ClaimSet{Iss: "signing", Sub: "signing", Aud: base, PrivateClaims: map[string]any{"jti": rand.Text()}}
	assertion.Exp = time.Now().Add(time.Minute).Unix()
	signing := &clientcredentials.Config{
		ClientID: "signing", TokenURL: tokenURL, AuthStyle: oauth2.AuthStyleInParams,
		EndpointParams: url.Values{"client_assertion": {sign(assertion)}, "client_assertion_type": {assertionType}},
	}
	report(ctx, "private_key_jwt", signing.TokenSource(ctx))
	report(ctx, "replayed private_key_jwt", signing.TokenSource(ctx))
}

// RFC 7523 §2.1.
func bearer(ctx context.Context) {
	configure := func(url string) *jwt.Config {
		return &jwt.Config{
			Email: issuer, Subject: subject, Audience: audience, Expires: time.Minute,
			PrivateKey: keyPEM, PrivateKeyID: keyID, TokenURL: url,
		}
	}
	// jwt.Config has no client id. net/http sends the user information of a URL as Basic credentials.
	report(ctx, "jwt package without a client", configure(tokenURL).TokenSource(ctx))
	withClient, err := url.Parse(tokenURL)
	check(err)
	withClient.User = url.UserPassword("billing", secret)
	report(ctx, "jwt package with credentials in the URL", configure(withClient.String()).TokenSource(ctx))
	report(ctx, "jwt bearer, public client", (&clientcredentials.Config{
		ClientID: "pods", TokenURL: tokenURL, AuthStyle: oauth2.AuthStyleInParams,
		EndpointParams: url.Values{"grant_type": {jwtBearer}, "assertion": {foreignToken()}},
	}).TokenSource(ctx))
	report(ctx, "jwt bearer, confidential client", (&clientcredentials.Config{
		ClientID: "billing", ClientSecret: secret, TokenURL: tokenURL, AuthStyle: oauth2.AuthStyleInHeader,
		EndpointParams: url.Values{"grant_type": {jwtBearer}, "assertion": {foreignToken()}},
	}).TokenSource(ctx))
}

// RFC 8693. A public client without a style sends empty Basic credentials first, is refused, and then sends client_id.
func exchange(ctx context.Context) {
	parameters := func() url.Values {
		return url.Values{"grant_type": {tokenExchange}, "subject_token": {foreignToken()}, "subject_token_type": {tokenTypeJWT}}
	}
	configure := func(id, secret string, style oauth2.AuthStyle) *clientcredentials.Config {
		return &clientcredentials.Config{
			ClientID: id, ClientSecret: secret, TokenURL: tokenURL, AuthStyle: style, EndpointParams: parameters(),
		}
	}
	report(ctx, "exchange, public client", configure("pods", "", oauth2.AuthStyleInParams).TokenSource(ctx))
	report(ctx, "exchange, public client, detected style", configure("pods", "", oauth2.AuthStyleAutoDetect).TokenSource(ctx))
	report(ctx, "exchange, confidential client", configure("billing", secret, oauth2.AuthStyleInHeader).TokenSource(ctx))
	report(ctx, "exchange, confidential client without its secret", configure("billing", "", oauth2.AuthStyleInParams).TokenSource(ctx))

	account := func(audience string, scopes ...string) oauth2.TokenSource {
		source, err := externalaccount.NewTokenSource(ctx, externalaccount.Config{
			Audience: audience, SubjectTokenType: tokenTypeJWT, TokenURL: tokenURL, Scopes: scopes,
			ClientID: "billing", ClientSecret: secret, SubjectTokenSupplier: supplier{},
		})
		check(err)
		return source
	}
	report(ctx, "externalaccount", account(base, "files:read"))
	report(ctx, "externalaccount without a scope", account(base))
	report(ctx, "externalaccount for another audience", account("https://other.example.test"))

	refreshable := report(ctx, "exchange with a refresh token", configure("jobs", "", oauth2.AuthStyleInParams).TokenSource(ctx))
	if refreshable == nil {
		return
	}
	expired := &oauth2.Token{RefreshToken: refreshable.RefreshToken, Expiry: time.Now().Add(-time.Minute)}
	config := &oauth2.Config{ClientID: "jobs", Endpoint: oauth2.Endpoint{TokenURL: tokenURL, AuthStyle: oauth2.AuthStyleInParams}}
	report(ctx, "refresh", config.TokenSource(ctx, expired))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
