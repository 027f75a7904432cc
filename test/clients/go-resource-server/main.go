// A resource server with github.com/zitadel/oidc: introspects ACCESS_TOKEN with a client secret, and prints each result as a
// line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/zitadel/oidc/v3/pkg/client/rs"
	"github.com/zitadel/oidc/v3/pkg/oidc"
)

type result struct {
	Step   string   `json:"step"`
	Active bool     `json:"active"`
	Scope  []string `json:"scope,omitempty"`
	Error  string   `json:"error,omitempty"`
}

func main() {
	issuer, endpoint, token := os.Getenv("ISSUER"), os.Getenv("INTROSPECTION_ENDPOINT"), os.Getenv("ACCESS_TOKEN")
	ctx := context.Background()
	// Its discovery is that of OpenID Connect, so the endpoints are configured.
	static := rs.WithStaticEndpoints(os.Getenv("TOKEN_ENDPOINT"), endpoint)
	report := func(step string, server rs.ResourceServer, err error, token string) {
		out := result{Step: step}
		if err == nil {
			var response *oidc.IntrospectionResponse
			if response, err = rs.Introspect[*oidc.IntrospectionResponse](ctx, server, token); err == nil {
				out.Active, out.Scope = response.Active, response.Scope
			}
		}
		if err != nil {
			out.Error = err.Error()
		}
		line, _ := json.Marshal(out)
		fmt.Println(string(line))
	}
	secret := os.Getenv("CLIENT_SECRET")
	server, err := rs.NewResourceServerClientCredentials(ctx, issuer, "files-api", secret, static)
	report("client_secret_basic", server, err, token)
	report("another token", server, err, "x")
	server, err = rs.NewResourceServerClientCredentials(ctx, issuer, "files-api", secret+"x", static)
	report("wrong secret", server, err, token)
}
