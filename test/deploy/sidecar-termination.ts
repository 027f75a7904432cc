import { createServer, type Server } from 'node:http';
import { type ClientHttp2Session, connect as connectHttp2 } from 'node:http2';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { Agent as UndiciAgent, request as undiciRequest } from 'undici';
import { onTestFinished } from 'vitest';
import { runGatehouse } from '../support/command-line.ts';
import { expireTimers, holdTimers } from '../support/held-timers.ts';
import { createServeFolder, type ServeProcess, startServe } from '../support/serve-process.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

/** A pod: an application, and gatehouse in front of it. */
interface Pod {
  readonly gatehouse: ServeProcess;
  readonly ca: string;
  readonly application: Application;
}

interface Application {
  readonly port: number;
  /** Stops listening and closes idle connections; running requests complete. Resolves when all connections are closed. */
  stop(): Promise<void>;
}

/** What Kubernetes does: where the clients' new connections go. */
class Endpoints {
  readonly #pods: Pod[];
  #next = 0;

  constructor(pods: readonly Pod[]) {
    this.#pods = [...pods];
  }

  remove(pod: Pod): void {
    this.#pods.splice(this.#pods.indexOf(pod), 1);
  }

  connect(alpn: string): TLSSocket {
    const pod = this.#pods[this.#next++ % this.#pods.length] as Pod;
    return connectTls({
      host: '127.0.0.1',
      port: pod.gatehouse.port,
      servername: 'localhost',
      ca: pod.ca,
      ALPNProtocols: [alpn],
    });
  }
}

/** The application's response time limits the rate of the clients. */
const RESPONSE_MS = 10;

async function startApplication(): Promise<Application> {
  const server: Server = createServer((request, response) => {
    request.resume().on('end', () => setTimeout(() => response.end('ok'), RESPONSE_MS));
  });
  const { port, close } = await listenTcp(server);
  onTestFinished(close);
  return {
    port,
    stop: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
      }),
  };
}

/** The pre-stop time of both containers, as in the chart, but shorter. */
const PRE_STOP_SECONDS = 3;

async function startPod(isNative: boolean): Promise<Pod> {
  const application = await startApplication();
  const folder = await createServeFolder((settings) => ({
    ...settings,
    upstreams: { default: { url: `http://127.0.0.1:${application.port}` } },
    routes: [{ path: '/**', public: true }],
    shutdown: { preStop: `${PRE_STOP_SECONDS}s`, drain: '20s' },
    log: { level: 'info', access: { enabled: false } },
  }));
  onTestFinished(() => folder.remove());
  // Otherwise a slow machine could take longer than the pre-stop time to remove the endpoint.
  const gatehouse = await startServe(folder, isNative ? {} : holdTimers(PRE_STOP_SECONDS * 1_000));
  return { gatehouse, ca: folder.ca.pem, application };
}

interface Load {
  readonly failures: readonly string[];
  waitForMore(count: number): Promise<void>;
  stop(): Promise<void>;
}

type Send = () => Promise<{ readonly status: number; readonly text: string }>;

/**
 * Clients that keep their connections, and never retry: every failure is counted. They send a request when they have received
 * the response to the last one. A request that `node:http2` has not written when it reads GOAWAY would fail in the client.
 */
function startLoad(endpoints: Endpoints): Load {
  const failures: string[] = [];
  let completed = 0;
  const stopped = new AbortController();
  const shared = http2Client(endpoints);
  const clients = [
    ...Array.from({ length: 6 }, () => httpsClient(endpoints)),
    ...Array.from({ length: 4 }, () => undiciClient(endpoints)),
    ...Array.from({ length: 2 }, () => http2Client(endpoints)),
    // Several requests at a time on one connection.
    shared,
    shared,
    shared,
  ];
  const running = clients.map(async ({ name, send, close }) => {
    while (!stopped.signal.aborted) {
      try {
        const { status, text } = await send();
        if (status === 200 && text === 'ok') completed += 1;
        else failures.push(`${name}: ${status} ${text}`);
      } catch (error) {
        failures.push(`${name}: ${(error as Error).message}`);
        await sleep(RESPONSE_MS);
      }
    }
    await close();
  });
  return {
    failures,
    async waitForMore(count) {
      const wanted = completed + count;
      await until(`${count} more responses`, () => completed >= wanted);
    },
    async stop() {
      stopped.abort();
      await Promise.all(running);
    },
  };
}

interface LoadClient {
  readonly name: string;
  readonly send: Send;
  readonly close: () => unknown;
}

const PATH = '/a';

function httpsClient(endpoints: Endpoints): LoadClient {
  const agent = new HttpsAgent({ keepAlive: true, maxSockets: 1 });
  agent.createConnection = () => endpoints.connect('http/1.1');
  const send: Send = () =>
    new Promise((resolve, reject) => {
      httpsRequest({ agent, host: 'localhost', path: PATH }, (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (part: string) => {
          text += part;
        });
        response.on('error', reject).on('end', () => resolve({ status: response.statusCode ?? 0, text }));
      })
        .on('error', reject)
        .end();
    });
  return { name: 'node:https', send, close: () => agent.destroy() };
}

function undiciClient(endpoints: Endpoints): LoadClient {
  const dispatcher = new UndiciAgent({
    connections: 1,
    connect(_options, callback) {
      const socket = endpoints.connect('http/1.1');
      socket.once('secureConnect', () => callback(null, socket)).once('error', (error) => callback(error, null));
    },
  });
  const send: Send = async () => {
    const { statusCode, body } = await undiciRequest(`https://localhost${PATH}`, { dispatcher });
    return { status: statusCode, text: await body.text() };
  };
  return { name: 'undici', send, close: () => dispatcher.destroy() };
}

function http2Client(endpoints: Endpoints): LoadClient {
  let session: ClientHttp2Session | undefined;
  const open = (): ClientHttp2Session => {
    if (session !== undefined && !session.closed && !session.destroyed) return session;
    session = connectHttp2('https://localhost', { createConnection: () => endpoints.connect('h2') });
    return session.on('error', () => {});
  };
  const send: Send = () =>
    new Promise((resolve, reject) => {
      const stream = open().request({ ':path': PATH }).setEncoding('utf8');
      let text = '';
      let status = 0;
      stream.on('response', (fields) => {
        status = Number(fields[':status']);
      });
      stream.on('data', (part: string) => {
        text += part;
      });
      stream.on('error', (error) => reject(new Error(`${error.message} (${stream.rstCode})`)));
      stream.on('close', () => resolve({ status, text }));
      stream.end();
    });
  return { name: 'node:http2', send, close: () => session?.close() };
}

/**
 * Terminates one of two pods as Kubernetes does, while clients send requests. Returns the requests that failed. Native sidecars
 * get SIGTERM after the application has ended; others together with it.
 */
export async function terminatePod(isNative: boolean): Promise<readonly string[]> {
  const [pod, other] = await Promise.all([startPod(isNative), startPod(isNative)]);
  const endpoints = new Endpoints([pod, other]);
  const load = startLoad(endpoints);
  await load.waitForMore(200);

  // The hooks of all containers start at once.
  const hooks = [runGatehouse(['sleep', String(PRE_STOP_SECONDS)])];
  if (isNative) hooks.push(runGatehouse(['drain', String(PRE_STOP_SECONDS), '--pid', String(pod.gatehouse.pid)]));
  else pod.gatehouse.signal('SIGTERM');
  const event = isNative ? 'shutdown_announced' : 'draining';
  await until('the shutdown is announced', () => pod.gatehouse.log.some((line) => line.event === event));
  // It takes a moment until no new connection goes to the pod.
  await load.waitForMore(100);
  endpoints.remove(pod);
  for (const { code, stderr } of await Promise.all(hooks)) if (code !== 0) throw new Error(stderr);

  if (!isNative) expireTimers(pod.gatehouse);
  await pod.application.stop();
  // The application takes a while to end.
  await load.waitForMore(300);
  if (isNative) pod.gatehouse.signal('SIGTERM');
  const { code } = await pod.gatehouse.ended;
  await load.waitForMore(100);
  await load.stop();
  return code === 0 ? load.failures : [...load.failures, `exit code ${code}`];
}
