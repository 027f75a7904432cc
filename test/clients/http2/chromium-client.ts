import { readFileSync } from 'node:fs';
import { openChromium, openWindow } from '../../support/chromium.ts';
import {
  CALL_PATH,
  DOWNLOAD_PATH,
  type Http2Client,
  SMALL_BODY,
  type Step,
  type Target,
  UPLOAD_PATH,
} from './walkthrough.ts';

/** Chromium: `fetch` in a page of the gateway. Choosing a certificate needs a dialog, so it gets a token. */
export const chromiumClient: Http2Client = {
  name: 'Chromium',
  presentsCertificate: false,
  async run(target) {
    const browser = await openChromium();
    try {
      const window = await openWindow(browser);
      const { page } = window;
      await page.goto(`${target.url}/health`);
      const paths = { call: CALL_PATH, upload: UPLOAD_PATH, download: DOWNLOAD_PATH };
      const body = readFileSync(target.files.upload).toString('base64');
      const steps = await page.evaluate(runInPage, { ...target, paths, body, smallBody: SMALL_BODY });
      await window.close();
      return steps;
    } finally {
      await browser.close();
    }
  },
};

interface PageTarget extends Target {
  readonly paths: Readonly<Record<'call' | 'upload' | 'download', string>>;
  /** Base64. */
  readonly body: string;
  readonly smallBody: string;
}

/** Runs in the browser: nothing of this module is defined there. */
async function runInPage({ token, paths, body, smallBody, items, concurrency }: PageTarget): Promise<Step[]> {
  const headers = { authorization: `Bearer ${token}` };
  performance.setResourceTimingBufferSize(2 * items);
  /** The protocol of every response since the last call. */
  const version = (): string => {
    const entries = performance.getEntriesByType('resource') as unknown as { nextHopProtocol: string }[];
    performance.clearResourceTimings();
    const protocols = new Set(entries.map(({ nextHopProtocol }) => nextHopProtocol));
    return [...protocols].join() === 'h2' ? 'HTTP/2' : [...protocols].join();
  };
  const steps: Step[] = [];
  const report = (step: Step['step'], status: number, text?: string): void =>
    void steps.push({ step, status, version: version(), ...(text !== undefined && { body: text }) });

  const call = await fetch(paths.call, { headers });
  report('call', call.status, await call.text());
  const refused = await fetch(paths.call, { cache: 'no-store' });
  await refused.text();
  report('refused', refused.status);
  const bytes = Uint8Array.fromBase64(body);
  const refusedBody = await fetch(paths.upload, { method: 'POST', body: smallBody });
  await refusedBody.text();
  report('refused-body', refusedBody.status);
  const refusedUpload = await fetch(paths.upload, { method: 'POST', body: bytes });
  await refusedUpload.text();
  report('refused-upload', refusedUpload.status);
  const upload = await fetch(paths.upload, { method: 'POST', headers, body: bytes });
  report('upload', upload.status, await upload.text());
  const download = await fetch(paths.download, { headers });
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', await download.arrayBuffer()));
  report('download', download.status, digest.toHex());

  let next = 1;
  let correct = 0;
  const requestItems = async (): Promise<void> => {
    while (next <= items) {
      const item = next++;
      const response = await fetch(`/files/item/${item}`, { headers });
      if (response.status === 200 && (await response.text()) === `item ${item}\n`) correct += 1;
    }
  };
  await Promise.all(Array.from({ length: concurrency }, requestItems));
  report('items', 200, String(correct));
  return steps;
}
