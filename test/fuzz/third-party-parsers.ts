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
 * HTTP servers that others have written. They get the bytes our upstream got, and tell which requests they read in
 * them: where they count other requests than we do, one of us can be made to see a request that was never judged.
 */
export interface ThirdPartyParser {
  readonly name: string;
  /** The requests in these bytes, each as `METHOD target request-id`. */
  read(bytes: string): Promise<readonly string[]>;
  close(): Promise<void>;
}

const PATIENCE_MS = 60_000;
/** For a line in the log of a request that was answered. */
const LATE_MS = 60_000;

/** Sends bytes, takes what comes back, and waits until the other side has closed. */
const replay = (port: number, bytes: string, halfClose: boolean): Promise<void> =>
  new Promise((resolve, reject) => {
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    const late = setTimeout(
      () => socket.destroy(new Error('the parser did not come to an end')),
      PATIENCE_MS,
    );
    socket.on('error', (error: NodeJS.ErrnoException) => {
      // It may close on what it does not take, or after a request that said so: what it told of is what counts.
      if (error.code === undefined) reject(error);
    });
    socket.on('close', () => {
      clearTimeout(late);
      resolve();
    });
    socket.on('end', () => socket.destroy()).resume();
    if (halfClose) socket.end(bytes, 'latin1');
    else socket.write(bytes, 'latin1');
  });

/** Asked for behind everything else, of a server that takes the end of what is sent for the end of the client. */
const lastRequest = (id: string): string =>
  `GET /that-is-all HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-Id: ${id}\r\n\r\n`;
const lastLine = (id: string): string => `GET /that-is-all ${id}`;

interface StartedParser {
  readonly file: string;
  readonly close: () => Promise<void>;
  /** It takes no half-closed connection, and may tell of its last request after the connection has ended. */
  readonly needsLast?: boolean;
}

/** A server that writes each request it has read into a file, before it closes the connection. */
async function startParser(
  name: string,
  start: (port: number) => Promise<StartedParser>,
): Promise<ThirdPartyParser> {
  const port = await freePort();
  const { file, close, needsLast = false } = await start(port);
  const outputFile = openSync(file, 'r');
  let at = 0;
  const tail = (): string[] => {
    const more = Buffer.alloc(fstatSync(outputFile).size - at);
    readSync(outputFile, more, 0, more.length, at);
    const whole = more.lastIndexOf('\n') + 1;
    at += whole;
    return more.toString('latin1', 0, whole).split('\n').filter(Boolean);
  };
  let count = 0;
  /** All is told when the last request is, or as many as have an id; what was asked afterwards may be told before. */
  const parseLast = async (bytes: string): Promise<string[]> => {
    count += 1;
    const [own, after] = [`${count}a`, `${count}b`];
    await replay(port, bytes + lastRequest(own), false);
    await replay(port, lastRequest(after), false);
    const expected = bytes.match(/\r\nx-request-id: /gi)?.length ?? 0;
    const lines: string[] = [];
    const hasOutput = (): boolean =>
      lines.includes(lastLine(after)) && (lines.includes(lastLine(own)) || lines.length > expected);
    for (const end = performance.now() + LATE_MS; !hasOutput(); lines.push(...tail())) {
      if (performance.now() > end) throw new Error(`${name} has not logged its last request`);
      await pause(1);
    }
    return lines.filter((line) => line !== lastLine(own) && line !== lastLine(after));
  };
  return {
    name,
    async read(bytes) {
      if (needsLast) return parseLast(bytes);
      await replay(port, bytes, true);
      return tail();
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
          "  log_format told escape=none '$request_method $request_uri $http_x_request_id';",
          `  access_log ${file} told;`,
          '  keepalive_requests 10000000;',
          '  large_client_header_buffers 8 64k;',
          '  client_max_body_size 0;',
          // It would half-close a connection before it has written down the last request.
          '  lingering_close off;',
          `  server { listen 127.0.0.1:${port}; location / { return 200; } }`,
        ]);
      },
    });
    return { file, close: () => server.close() };
  });

/** Request line and fields are read by Python's own server; the bodies, which it leaves to its user, below. */
const PYTHON = `
import http.client, http.server, sys
http.client._MAXHEADERS = 10000
told = open(sys.argv[2], 'a', buffering=1)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def __getattr__(self, name):
        if name.startswith('do_'): return self.answer
        raise AttributeError(name)
    def answer(self):
        codings = self.headers.get_all('Transfer-Encoding') or []
        lengths = self.headers.get_all('Content-Length') or []
        if len(codings) + len(lengths) > 1: raise ValueError('framed twice')
        if codings:
            if codings != ['chunked']: raise ValueError('coding')
            while True:
                size = int(self.rfile.readline().split(b';')[0], 16)
                self.rfile.read(size)
                if self.rfile.readline() != b'\\r\\n': raise ValueError('chunk')
                if size == 0: break
        elif lengths:
            self.rfile.read(int(lengths[0]))
        told.write(f"{self.command} {self.path} {self.headers.get('X-Request-Id')}\\n")
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

/** Go's own server reads all of it, bodies too. */
const GO = `package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

func main() {
	told, err := os.OpenFile(os.Args[2], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	var one sync.Mutex
	server := &http.Server{
		Addr:                         "127.0.0.1:" + os.Args[1],
		MaxHeaderBytes:               1 << 20,
		DisableGeneralOptionsHandler: true,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			one.Lock()
			defer one.Unlock()
			fmt.Fprintf(told, "%s %s %s\\n", r.Method, r.RequestURI, r.Header.Get("X-Request-Id"))
		}),
	}
	panic(server.ListenAndServe())
}
`;

/** It has a body in its hands before it tells of a request, and room for the longest that is sent here. */
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
  # Whoever only looks whether the port is open asked for nothing.
  option dontlognull
  option http-buffer-request
  http-request capture req.hdr(x-request-id) len 128
  http-request set-var(txn.target) url
  log global
  log-format "%HM %[var(txn.target)] %[capture.req.hdr(0)]"
  http-request return status 200
`;

/** Written in C like nginx, by others and from another beginning: requests are turned into blocks of its own. */
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

/** With an empty build cache, Go compiles its standard library first. */
const BUILD_MS = 900_000;

/** Undefined where Go is not installed. */
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
  /** Go's too, where it is installed: it has to be built first. */
  readonly go?: boolean | undefined;
}

export async function startThirdPartyParsers({
  go = false,
}: ParserOptions = {}): Promise<readonly ThirdPartyParser[]> {
  const starting = [nginx(), haproxy(), python(), ...(go ? [goNetHttp()] : [])];
  try {
    return (await Promise.all(starting)).filter((parser) => parser !== undefined);
  } catch (error) {
    for (const one of await Promise.allSettled(starting))
      if (one.status === 'fulfilled') await one.value?.close();
    throw error;
  }
}
