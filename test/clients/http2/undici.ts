import { readFileSync } from 'node:fs';
import type { TLSSocket } from 'node:tls';
import { Agent, buildConnector, request } from 'undici';
import {
  CALL_PATH,
  DOWNLOAD_PATH,
  type Http2Client,
  itemBody,
  itemPath,
  SMALL_BODY,
  type Step,
  sha256,
  TOKEN_PATH,
  TOKEN_REQUEST,
  UPLOAD_PATH,
} from './walkthrough.ts';

/** undici with `allowH2`. */
export const undici: Http2Client = {
  name: 'undici',
  presentsCertificate: true,
  async run({ url, files, items, concurrency }) {
    const protocols = new Set<string>();
    const [ca, cert, key] = [files.ca, files.certificate, files.key].map((file) => readFileSync(file, 'utf8'));
    const connector = buildConnector({ ca: ca ?? '', cert: cert ?? '', key: key ?? '', allowH2: true });
    const agent = new Agent({
      allowH2: true,
      connections: 2,
      connect: (options, callback) =>
        connector(options, (...[error, socket]) => {
          if (error !== null) return callback(error, null);
          protocols.add(String((socket as TLSSocket).alpnProtocol));
          return callback(null, socket);
        }),
    });
    /** undici reports the protocol of connections only. */
    const version = (): string => ([...protocols].join() === 'h2' ? 'HTTP/2' : [...protocols].join());
    const send = async (path: string, options: Parameters<typeof request>[1] = {}) => {
      const { statusCode, body } = await request(url + path, { ...options, dispatcher: agent });
      return { status: statusCode, bytes: Buffer.from(await body.arrayBuffer()) };
    };
    try {
      const token = await send(TOKEN_PATH, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: TOKEN_REQUEST,
      });
      const { access_token } = JSON.parse(String(token.bytes)) as { access_token: string };
      const headers = { authorization: `Bearer ${access_token}` };
      const call = await send(CALL_PATH, { headers });
      const refused = await send(CALL_PATH);
      const body = readFileSync(files.upload);
      const refusedBody = await send(UPLOAD_PATH, { method: 'POST', body: SMALL_BODY });
      const refusedUpload = await send(UPLOAD_PATH, { method: 'POST', body });
      const upload = await send(UPLOAD_PATH, { method: 'POST', headers, body });
      const download = await send(DOWNLOAD_PATH, { headers });
      let next = 1;
      let correct = 0;
      const requestItems = async (): Promise<void> => {
        while (next <= items) {
          const item = next++;
          const { status, bytes } = await send(itemPath(item), { headers });
          if (status === 200 && String(bytes) === itemBody(item)) correct += 1;
        }
      };
      await Promise.all(Array.from({ length: concurrency }, requestItems));
      const steps: Omit<Step, 'version'>[] = [
        { step: 'token', status: token.status },
        { step: 'call', status: call.status, body: String(call.bytes) },
        { step: 'refused', status: refused.status },
        { step: 'refused-body', status: refusedBody.status },
        { step: 'refused-upload', status: refusedUpload.status },
        { step: 'upload', status: upload.status, body: String(upload.bytes) },
        { step: 'download', status: download.status, body: sha256(download.bytes) },
        { step: 'items', status: 200, body: String(correct) },
      ];
      return steps.map((step) => ({ ...step, version: version() }));
    } finally {
      await agent.destroy();
    }
  },
};
