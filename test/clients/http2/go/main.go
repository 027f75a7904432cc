// The walkthrough with Go's net/http (../walkthrough.ts). Prints each step as a line of JSON. The CA is in SSL_CERT_FILE, which
// crypto/x509 reads.
package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
)

type step struct {
	Step    string `json:"step"`
	Status  int    `json:"status"`
	Version string `json:"version"`
	Body    string `json:"body,omitempty"`
}

var (
	base   = os.Getenv("GATEHOUSE_URL")
	token  string
	client *http.Client
)

func main() {
	certificate, err := tls.LoadX509KeyPair(os.Getenv("CLIENT_CERTIFICATE"), os.Getenv("CLIENT_KEY"))
	check(err)
	client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{Certificates: []tls.Certificate{certificate}},
		ForceAttemptHTTP2: true,
	}}

	granted, body := send(http.MethodPost, "/authsvc/Authorize/Certificate", "application/json", []byte(os.Getenv("TOKEN_REQUEST")))
	var grant struct {
		AccessToken string `json:"access_token"`
	}
	check(json.Unmarshal(body, &grant))
	report(step{"token", granted.StatusCode, version(granted), ""})

	content, err := os.ReadFile(os.Getenv("UPLOAD_FILE"))
	check(err)
	refused, _ := send(http.MethodGet, "/files/welcome", "", nil)
	refusedBody, _ := send(http.MethodPost, "/reports/digest", "text/plain", []byte(os.Getenv("SMALL_BODY")))
	refusedUpload, _ := send(http.MethodPost, "/reports/digest", "application/octet-stream", content)
	token = grant.AccessToken
	called, body := send(http.MethodGet, "/files/welcome", "", nil)
	report(step{"call", called.StatusCode, version(called), string(body)})
	report(step{"refused", refused.StatusCode, version(refused), ""})
	report(step{"refused-body", refusedBody.StatusCode, version(refusedBody), ""})
	report(step{"refused-upload", refusedUpload.StatusCode, version(refusedUpload), ""})

	uploaded, body := send(http.MethodPost, "/reports/digest", "application/octet-stream", content)
	report(step{"upload", uploaded.StatusCode, version(uploaded), string(body)})
	downloaded, body := send(http.MethodGet, "/files/large", "", nil)
	digest := sha256.Sum256(body)
	report(step{"download", downloaded.StatusCode, version(downloaded), hex.EncodeToString(digest[:])})
	items()
}

func items() {
	count, err := strconv.ParseInt(os.Getenv("ITEMS"), 10, 64)
	check(err)
	concurrency, err := strconv.Atoi(os.Getenv("CONCURRENCY"))
	check(err)
	var next, correct atomic.Int64
	var wait sync.WaitGroup
	for range concurrency {
		wait.Go(func() {
			for item := next.Add(1); item <= count; item = next.Add(1) {
				response, body := send(http.MethodGet, fmt.Sprintf("/files/item/%d", item), "", nil)
				if response.StatusCode == 200 && response.ProtoMajor == 2 && string(body) == fmt.Sprintf("item %d\n", item) {
					correct.Add(1)
				}
			}
		})
	}
	wait.Wait()
	report(step{"items", 200, "HTTP/2", strconv.FormatInt(correct.Load(), 10)})
}

func send(method, path, contentType string, content []byte) (*http.Response, []byte) {
	request, err := http.NewRequest(method, base+path, bytes.NewReader(content))
	check(err)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	check(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	check(err)
	return response, body
}

func version(response *http.Response) string {
	if response.ProtoMajor == 2 {
		return "HTTP/2"
	}
	return response.Proto
}

func report(line step) {
	check(json.NewEncoder(os.Stdout).Encode(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
