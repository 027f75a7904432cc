import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import type { RequestListener } from 'node:http';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { finish, spawnChild } from '../../support/child-process.ts';
import { connect, createServeFolder, startServe } from '../../support/serve-process.ts';

/**
 * What every HTTP/2 client does: it obtains a token (with its certificate, if it can present one), calls the API with it and
 * without it, sends a small and a large body without it, a large one with it, downloads a file, and then requests many items,
 * each once.
 */
export interface Http2Client {
  readonly name: string;
  /** Clients that cannot present a certificate use the given token and have no step `token`. */
  readonly presentsCertificate: boolean;
  /** For clients that print no bodies: each body of a step is its length instead. */
  readonly hasLengthsOnly?: boolean;
  run(target: Target): Promise<readonly Step[]>;
}

export interface Target {
  readonly url: string;
  /** For files of the client. */
  readonly folder: string;
  readonly files: {
    readonly ca: string;
    readonly certificate: string;
    readonly key: string;
    /** The body to send. */
    readonly upload: string;
  };
  readonly token: string;
  /** How many items to request. */
  readonly items: number;
  /** The most requests at the same time. */
  readonly concurrency: number;
}

/** Without a token: a request without a body, one with a small body, and one with a body that exceeds its window. */
export type RefusedStep = 'refused' | 'refused-body' | 'refused-upload';

export interface Step {
  readonly step: 'token' | 'call' | RefusedStep | 'upload' | 'download' | 'items';
  readonly status: number;
  /** `HTTP/2` if the client reports so for all responses of the step. */
  readonly version: string;
  /** The response of `call` and `upload`, the SHA-256 of `download`, and the number of correct responses of `items`. */
  readonly body?: string | undefined;
}

export const TOKEN_PATH = '/authsvc/Authorize/Certificate';
const SCOPE = 'files:read;reports:write';
export const TOKEN_REQUEST = JSON.stringify({ client_id: 'report-runner', scope: SCOPE });
/** Sent without a token. */
export const SMALL_BODY = 'x=1';
export const CALL_PATH = '/files/welcome';
export const UPLOAD_PATH = '/reports/digest';
export const DOWNLOAD_PATH = '/files/large';
export const listItems = (count: number): readonly number[] => Array.from({ length: count }, (_, index) => index + 1);
export const itemPath = (item: number): string => `/files/item/${item}`;
export const itemBody = (item: number): string => `item ${item}\n`;

const WELCOME = 'welcome';
/** More than the windows of a stream and of a connection. */
const UPLOAD = randomBytes(3 * 1_048_576);
const DOWNLOAD = randomBytes(16 * 1_048_576);

export const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

export interface WalkthroughGateway {
  /** Runs the walkthrough with a client and checks every result. */
  check(client: Http2Client, items: number): Promise<void>;
  close(): Promise<void>;
}

/** A gatehouse process in front of an API that records which items were requested. */
export async function startWalkthroughGateway(): Promise<WalkthroughGateway> {
  const requested = new Map<string, number>();
  const listener: RequestListener = (request, response) => {
    const { url = '' } = request;
    const item = /^\/files\/item\/(\d+)$/.exec(url)?.[1];
    if (item !== undefined) {
      requested.set(item, (requested.get(item) ?? 0) + 1);
      response.end(itemBody(Number(item)));
    } else if (url === DOWNLOAD_PATH) response.end(DOWNLOAD);
    else if (url === UPLOAD_PATH) {
      const digest = createHash('sha256');
      request.on('data', (part: Buffer) => digest.update(part));
      request.on('end', () => response.end(digest.digest('hex')));
    } else response.end(WELCOME);
  };
  const folder = await createServeFolder(
    (settings) => ({ ...settings, log: { level: 'info', access: { enabled: false } } }),
    listener,
  );
  const closeFolder = (): Promise<void> => folder.remove();
  try {
    const server = await startServe(folder);
    const alice = connect(folder, server.port, folder.alice);
    const { access_token: token } = await alice.grant(SCOPE);
    alice.close();
    folder.write('alice.pem', folder.alice.pem);
    folder.write('alice-key.pem', folder.alice.keyPem);
    folder.write('upload', UPLOAD);
    const target = {
      url: `https://localhost:${server.port}`,
      folder: folder.path,
      files: {
        ca: folder.file('ca.pem'),
        certificate: folder.file('alice.pem'),
        key: folder.file('alice-key.pem'),
        upload: folder.file('upload'),
      },
      token,
      concurrency: 50,
    };
    return {
      async check(client, items) {
        requested.clear();
        const steps = await client.run({ ...target, items });
        const version = 'HTTP/2';
        const { presentsCertificate, hasLengthsOnly = false } = client;
        const itemBytes = listItems(items).reduce((sum, item) => sum + itemBody(item).length, 0);
        const digest = sha256(UPLOAD);
        const expected = hasLengthsOnly
          ? { call: WELCOME.length, upload: digest.length, download: DOWNLOAD.length, items: itemBytes }
          : { call: WELCOME, upload: digest, download: sha256(DOWNLOAD), items };
        expect(steps).toEqual([
          ...(presentsCertificate ? [{ step: 'token', status: 200, version }] : []),
          { step: 'call', status: 200, version, body: String(expected.call) },
          { step: 'refused', status: 401, version },
          { step: 'refused-body', status: 401, version },
          { step: 'refused-upload', status: 401, version },
          { step: 'upload', status: 200, version, body: String(expected.upload) },
          { step: 'download', status: 200, version, body: String(expected.download) },
          { step: 'items', status: 200, version, body: String(expected.items) },
        ]);
        expect(requested.size, 'items that reached the API').toBe(items);
        const repeated = [...requested].filter(([, count]) => count !== 1);
        expect(repeated, 'items that reached the API more than once').toEqual([]);
        expect(server.log.filter(({ event }) => event === 'http2_connection_closed')).toEqual([]);
      },
      async close() {
        const exitCode = await server.stop();
        await closeFolder();
        expect(exitCode, 'exit code of gatehouse').toBe(0);
      },
    };
  } catch (error) {
    await closeFolder();
    throw error;
  }
}

/** The time for a client to complete everything, on a busy machine. */
const LIMIT_SECONDS = 540;

/** Runs a program that prints each step as a line of JSON. It gets everything about the target from its environment. */
export async function runProgram(command: readonly string[], target: Target): Promise<readonly Step[]> {
  const { code, stdout, output } = await finish(
    spawnChild(command, {
      env: {
        ...process.env,
        GATEHOUSE_URL: target.url,
        CA_FILE: target.files.ca,
        CLIENT_CERTIFICATE: target.files.certificate,
        CLIENT_KEY: target.files.key,
        UPLOAD_FILE: target.files.upload,
        TOKEN_REQUEST,
        SMALL_BODY,
        ITEMS: String(target.items),
        CONCURRENCY: String(target.concurrency),
      },
    }),
    LIMIT_SECONDS,
  );
  expect(code, output).toBe(0);
  return stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Step);
}

/** Runs a command-line client; returns its standard output. */
export async function runCommand([program = '', ...args]: readonly string[]): Promise<Buffer> {
  const { stdout } = await promisify(execFile)(program, args, {
    encoding: 'buffer',
    maxBuffer: 2 * DOWNLOAD.length,
    timeout: LIMIT_SECONDS * 1_000,
  });
  return stdout;
}
