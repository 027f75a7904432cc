// The programs of the images that the cluster needs besides gatehouse. They are static, so that an image needs nothing else.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "api" {
		serveAPI(os.Args[2])
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "write" {
		if err := os.WriteFile(os.Args[2], []byte(os.Getenv("CONTENT")), 0o600); err != nil {
			panic(err)
		}
		return
	}
	if len(os.Args) > 3 && os.Args[1] == "whoami" && os.Args[2] == "--port" {
		serveWhoami(os.Args[3])
		return
	}
	pause()
}

// The first process of a pod's sandbox: it holds the namespaces and reaps orphans.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// An API that describes the request. After SIGTERM it serves for STOP_AFTER, closes its listener and its connections, and
// exits after EXIT_AFTER, as applications do that ignore their endpoints or need time to stop.
func serveAPI(address string) {
	pod, _ := os.Hostname()
	stopAfter, _ := time.ParseDuration(os.Getenv("STOP_AFTER"))
	exitAfter, _ := time.ParseDuration(os.Getenv("EXIT_AFTER"))
	server := &http.Server{Addr: address}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"pod": pod, "path": r.RequestURI, "headers": r.Header})
	})
	stopped := make(chan struct{})
	go func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		<-signals
		time.Sleep(stopAfter)
		server.Shutdown(context.Background())
		time.Sleep(exitAfter)
		close(stopped)
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		panic(err)
	}
	<-stopped
}

// Describes requests in the format of traefik/whoami.
func serveWhoami(port string) {
	pod, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Hostname: %s\nRemoteAddr: %s\n", pod, r.RemoteAddr)
		r.Write(w)
	})
	panic(http.ListenAndServe(":"+port, nil))
}
