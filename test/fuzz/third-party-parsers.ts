import { execFile, spawnSync } from 'node:child_process';
import { closeSync, fstatSync, mkdtempSync, openSync, readSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { promisify } from 'node:util';
import { needs } from '../set-up/programs.ts';
import { freePort, nginxArguments, startFrontProxy } from '../support/front-proxy.ts';

needs('nginx', 'haproxy', 'python3');

/**
 * Third-party HTTP servers that parse the bytes our upstream received. If they find other requests than we do, one of the
 * parsers can be made to see a request that was never authorized.
 */
export interface ThirdPartyParser {
  readonly name: string;
  /** The requests in these bytes, each as `METHOD target request-id`. */
  read(bytes: string): Promise<readonly string[]>;
  close(): Promise<void>;
}

const REPLAY_TIMEOUT_MS = 60_000;
/** For the log line of a request that got a response. */
const LOG_TIMEOUT_MS = 60_000;

/** Sends bytes, discards the responses, and waits until the server has closed the connection. */
const replay = (port: number, bytes: string, halfClose: boolean): Promise<void> =>
  new Promise((resolve, reject) => {
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    const timer = setTimeout(
      () => socket.destroy(new Error('the parser did not close the connection')),
      REPLAY_TIMEOUT_MS,
    );
    socket.on('error', (error: NodeJS.ErrnoException) => {
      // The server may reset the connection; only the requests it has logged matter.
      if (error.code === undefined) reject(error);
    });
    socket.on('close', () => {
      clearTimeout(timer);
      resolve();
    });
    socket.on('end', () => socket.destroy()).resume();
    if (halfClose) socket.end(bytes, 'latin1');
    else socket.write(bytes, 'latin1');
  });

/** A final request, for servers that treat a half-close as an abort. */
const lastRequest = (id: string): string =>
  `GET /last-request HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-Id: ${id}\r\n\r\n`;
const lastLine = (id: string): string => `GET /last-request ${id}`;

interface StartedParser {
  readonly file: string;
  readonly close: () => Promise<void>;
  /** The server aborts half-closed connections, and may log its last request after the connection is closed. */
  readonly needsLast?: boolean;
}

/** Starts a server that writes each parsed request to a file before it closes the connection. */
async function startParser(name: string, start: (port: number) => Promise<StartedParser>): Promise<ThirdPartyParser> {
  const port = await freePort();
  const { file, close, needsLast = false } = await start(port);
  const outputFile = openSync(file, 'r');
  let at = 0;
  const readNewLines = (): string[] => {
    const more = Buffer.alloc(fstatSync(outputFile).size - at);
    readSync(outputFile, more, 0, more.length, at);
    const end = more.lastIndexOf('\n') + 1;
    at += end;
    return more.toString('latin1', 0, end).split('\n').filter(Boolean);
  };
  let count = 0;
  /** Waits for the log lines of the final request, or of all requests with an id, and of a request on a later connection. */
  const readWithFinalRequest = async (bytes: string): Promise<string[]> => {
    count += 1;
    const [own, after] = [`${count}a`, `${count}b`];
    await replay(port, bytes + lastRequest(own), false);
    await replay(port, lastRequest(after), false);
    const expected = bytes.match(/\r\nx-request-id: /gi)?.length ?? 0;
    const lines: string[] = [];
    const hasOutput = (): boolean =>
      lines.includes(lastLine(after)) && (lines.includes(lastLine(own)) || lines.length > expected);
    for (const end = performance.now() + LOG_TIMEOUT_MS; !hasOutput(); lines.push(...readNewLines())) {
      if (performance.now() > end) throw new Error(`${name} has not logged its last request`);
      await pause(1);
    }
    return lines.filter((line) => line !== lastLine(own) && line !== lastLine(after));
  };
  return {
    name,
    async read(bytes) {
      if (needsLast) return readWithFinalRequest(bytes);
      await replay(port, bytes, true);
      return readNewLines();
    },
    async close() {
      closeSync(outputFile);
      await close();
    },
  };
}

export const nginx = (): Promise<ThirdPartyParser> =>
  startParser('nginx', async (port) => {
    let file = '';
    const server = await startFrontProxy({
      program: 'nginx',
      port,
      arguments: (folder, write) => {
        file = `${folder}/requests.log`;
        return nginxArguments(folder, write, [
          "  log_format requests escape=none '$request_method $request_uri $http_x_request_id';",
          `  access_log ${file} requests;`,
          '  keepalive_requests 10000000;',
          '  large_client_header_buffers 8 64k;',
          '  client_max_body_size 0;',
          // Otherwise nginx half-closes a connection before it has logged the last request.
          '  lingering_close off;',
          `  server { listen 127.0.0.1:${port}; location / { return 200; } }`,
        ]);
      },
    });
    return { file, close: () => server.close() };
  });

/** Python's server parses the request line and fields; bodies are left to the handler below. */
const PYTHON = `
import http.client, http.server, sys
http.client._MAXHEADERS = 10000
requests = open(sys.argv[2], 'a', buffering=1)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def __getattr__(self, name):
        if name.startswith('do_'): return self.respond
        raise AttributeError(name)
    def respond(self):
        codings = self.headers.get_all('Transfer-Encoding') or []
        lengths = self.headers.get_all('Content-Length') or []
        if len(codings) + len(lengths) > 1: raise ValueError('framed twice')
        if codings:
            if codings != ['chunked']: raise ValueError('coding')
            while True:
                size = int(self.rfile.readline().split(b';')[0], 16)
                if size == 0:
                    http.client.parse_headers(self.rfile)
                    break
                self.rfile.read(size)
                if self.rfile.readline() != b'\\r\\n': raise ValueError('chunk')
        elif lengths:
            self.rfile.read(int(lengths[0]))
        requests.write(f"{self.command} {self.path} {self.headers.get('X-Request-Id')}\\n")
        self.send_response_only(200)
        self.send_header('Content-Length', '0')
        self.end_headers()
    def log_message(self, *_): pass

http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
`;

export const python = (): Promise<ThirdPartyParser> =>
  startParser('python', async (port) => {
    let file = '';
    const server = await startFrontProxy({
      program: 'python3',
      port,
      arguments: (_folder, write) => {
        file = write('requests.log', '');
        return ['-I', write('server.py', PYTHON), String(port), file];
      },
    });
    return { file, close: () => server.close() };
  });

/** Go's server parses everything, including bodies. */
const GO = `package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

func main() {
	requests, err := os.OpenFile(os.Args[2], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	var mutex sync.Mutex
	server := &http.Server{
		Addr:                         "127.0.0.1:" + os.Args[1],
		MaxHeaderBytes:               1 << 20,
		DisableGeneralOptionsHandler: true,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			mutex.Lock()
			defer mutex.Unlock()
			fmt.Fprintf(requests, "%s %s %s\\n", r.Method, r.RequestURI, r.Header.Get("X-Request-Id"))
		}),
	}
	panic(server.ListenAndServe())
}
`;

/** Buffers the body before it logs a request; the buffer is large enough for all test requests. */
const HAPROXY = (port: number): string => `
global
  log stdout len 65535 format raw local0
  nbthread 1
  maxconn 100
  tune.bufsize 131072
  tune.maxrewrite 1024
  tune.http.maxhdr 1024
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 60s
frontend parser
  bind 127.0.0.1:${port}
  # Do not log connections that only probe whether the port is open.
  option dontlognull
  option http-buffer-request
  http-request capture req.hdr(x-request-id) len 128
  http-request set-var(txn.target) url
  log global
  log-format "%HM %[var(txn.target)] %[capture.req.hdr(0)]"
  http-request return status 200
`;

/** An independent parser with its own internal message format (HTX). */
export const haproxy = (): Promise<ThirdPartyParser> =>
  startParser('haproxy', async (port) => {
    let file = '';
    const server = await startFrontProxy({
      program: 'sh',
      port,
      arguments: (_folder, write) => {
        file = write('requests.log', '');
        return ['-c', 'exec haproxy -f "$1" >> "$2"', 'sh', write('haproxy.cfg', HAPROXY(port)), file];
      },
    });
    return { file, close: () => server.close(), needsLast: true };
  });

/** With an empty build cache, Go also compiles its standard library. */
const BUILD_MS = 900_000;

/** Undefined if Go is not installed. */
export async function goNetHttp(): Promise<ThirdPartyParser | undefined> {
  const go = ['go', '/usr/local/go/bin/go'].find((name) => spawnSync(name, ['version']).status === 0);
  if (go === undefined) return undefined;
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-go-parser-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  try {
    writeFileSync(join(folder, 'go.mod'), 'module parser\n\ngo 1.21\n');
    writeFileSync(join(folder, 'main.go'), GO);
    await promisify(execFile)(go, ['build', '-o', 'parser', '.'], { cwd: folder, timeout: BUILD_MS });
    return await startParser('go', async (port) => {
      let file = '';
      const server = await startFrontProxy({
        program: join(folder, 'parser'),
        port,
        arguments: (_folder, write) => {
          file = write('requests.log', '');
          return [String(port), file];
        },
      });
      return { file, close: () => server.close().finally(remove) };
    });
  } catch (error) {
    remove();
    throw error;
  }
}

export interface ParserOptions {
  /** Also start Go's server, if Go is installed; it has to be built first. */
  readonly go?: boolean | undefined;
}

export async function startThirdPartyParsers({ go = false }: ParserOptions = {}): Promise<readonly ThirdPartyParser[]> {
  const starting = [nginx(), haproxy(), python(), ...(go ? [goNetHttp()] : [])];
  try {
    return (await Promise.all(starting)).filter((parser) => parser !== undefined);
  } catch (error) {
    for (const result of await Promise.allSettled(starting))
      if (result.status === 'fulfilled') await result.value?.close();
    throw error;
  }
}
