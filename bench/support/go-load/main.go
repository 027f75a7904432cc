// HTTP/2 load from Go's net/http, as a service written in Go would send it: each connection has its own transport, and several
// goroutines share it. Paths and tokens change from request to request.
//
// The server's CPU time is read here, so that the measured window begins after all handshakes. Prints one line of JSON.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	base        = flag.String("url", "", "scheme, host and port of the server")
	tokenFile   = flag.String("tokens", "", "file with one token per line, used in rotation")
	pathFormat  = flag.String("path", "", "path with %d for a number")
	paths       = flag.Int("paths", 1000, "number of paths, used in rotation")
	length      = flag.Int("length", 1024, "bytes of each response")
	connections = flag.Int("connections", 16, "number of connections")
	streams     = flag.Int("streams", 10, "concurrent requests on each connection")
	warm        = flag.Duration("warm", time.Second, "load before the measured window")
	duration    = flag.Duration("duration", 2*time.Second, "the measured window")
	pids        = flag.String("pids", "", "comma-separated processes whose CPU time is measured")
)

type result struct {
	Requests int     `json:"requests"`
	Seconds  float64 `json:"seconds"`
	Ticks    int     `json:"ticks"`
	P50      int64   `json:"p50"`
	P99      int64   `json:"p99"`
}

var (
	counter   atomic.Uint64
	measuring atomic.Bool
	stopped   atomic.Bool
	tokens    []string
)

func main() {
	flag.Parse()
	text, err := os.ReadFile(*tokenFile)
	check(err)
	tokens = strings.Fields(string(text))

	var wait sync.WaitGroup
	latencies := make([][]int64, *connections**streams)
	for connection := range *connections {
		client := &http.Client{Transport: &http.Transport{
			// As wrk and h2load do, which verify no certificate.
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			ForceAttemptHTTP2: true,
		}}
		// Until the first response, the transport would open a connection for each concurrent request.
		send(client)
		for stream := range *streams {
			wait.Go(func() {
				own := make([]int64, 0, 1<<16)
				for !stopped.Load() {
					begin := time.Now()
					send(client)
					if measuring.Load() {
						own = append(own, time.Since(begin).Microseconds())
					}
				}
				latencies[connection**streams+stream] = own
			})
		}
	}
	time.Sleep(*warm)
	begin, cpu := time.Now(), ticks()
	measuring.Store(true)
	time.Sleep(*duration)
	measuring.Store(false)
	out := result{Seconds: time.Since(begin).Seconds(), Ticks: ticks() - cpu}
	stopped.Store(true)
	wait.Wait()
	all := slices.Concat(latencies...)
	if len(all) == 0 {
		fail("no request within the window")
	}
	slices.Sort(all)
	out.Requests, out.P50, out.P99 = len(all), all[len(all)/2], all[len(all)*99/100]
	check(json.NewEncoder(os.Stdout).Encode(out))
}

func send(client *http.Client) {
	number := counter.Add(1)
	request, err := http.NewRequest(http.MethodGet, *base+fmt.Sprintf(*pathFormat, number%uint64(*paths)), nil)
	check(err)
	request.Header.Set("Authorization", "Bearer "+tokens[number%uint64(len(tokens))])
	response, err := client.Do(request)
	check(err)
	defer response.Body.Close()
	received, err := io.Copy(io.Discard, response.Body)
	check(err)
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 || received != int64(*length) {
		fail(fmt.Sprintf("%s, status %d, %d bytes", response.Proto, response.StatusCode, received))
	}
}

// User and system time: fields 14 and 15 of /proc/<pid>/stat, counted after the name, which may contain spaces.
func ticks() int {
	sum := 0
	for pid := range strings.SplitSeq(*pids, ",") {
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		check(err)
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		var user, system int
		_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
		check(err)
		sum += user + system
	}
	return sum
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
