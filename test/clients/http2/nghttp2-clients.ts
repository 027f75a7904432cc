import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { needs } from '../../set-up/programs.ts';
import {
  CALL_PATH,
  DOWNLOAD_PATH,
  type Http2Client,
  itemBody,
  itemPath,
  listItems,
  type RefusedStep,
  runCommand,
  SMALL_BODY,
  type Step,
  sha256,
  TOKEN_PATH,
  TOKEN_REQUEST,
  UPLOAD_PATH,
} from './walkthrough.ts';

needs('nghttp', 'h2load');

/** nghttp, which speaks HTTP/2 only. It sends all requests at once, within the server's limit of concurrent streams. */
export const nghttp: Http2Client = {
  name: 'nghttp',
  presentsCertificate: true,
  async run({ url, folder, files, items }) {
    const send = async (args: readonly string[], ...paths: readonly string[]): Promise<NghttpOutput> =>
      parseNghttp(await runCommand(['nghttp', '--stat', ...args, ...paths.map((path) => url + path)]));
    const report = (step: Step['step'], { statuses }: NghttpOutput, body?: string): Step => ({
      step,
      status: Number([...new Set(statuses)].join()),
      version: 'HTTP/2',
      ...(body !== undefined && { body }),
    });
    const tokenRequest = join(folder, 'token-request');
    writeFileSync(tokenRequest, TOKEN_REQUEST);
    const json = [`--data=${tokenRequest}`, '--header=content-type: application/json'];
    const token = await send([`--cert=${files.certificate}`, `--key=${files.key}`, ...json], TOKEN_PATH);
    const { access_token } = JSON.parse(String(token.body)) as { access_token: string };
    const authorization = `--header=authorization: Bearer ${access_token}`;
    const call = await send([authorization], CALL_PATH);
    const refused = await send([], CALL_PATH);
    const smallBody = join(folder, 'small-body');
    writeFileSync(smallBody, SMALL_BODY);
    const refusedBody = await send([`--data=${smallBody}`], UPLOAD_PATH);
    const refusedUpload = await send([`--data=${files.upload}`], UPLOAD_PATH);
    const upload = await send([authorization, `--data=${files.upload}`], UPLOAD_PATH);
    const download = await send([authorization], DOWNLOAD_PATH);
    const all = await send([authorization], ...listItems(items).map(itemPath));
    const received = String(all.body).split(/(?<=\n)/);
    const expected = new Set(listItems(items).map(itemBody));
    const correct = received.filter((body) => expected.delete(body));
    return [
      report('token', token),
      report('call', call, String(call.body)),
      report('refused', refused),
      report('refused-body', refusedBody),
      report('refused-upload', refusedUpload),
      report('upload', upload, String(upload.body)),
      report('download', download, sha256(download.body)),
      report('items', all, String(correct.length)),
    ];
  },
};

interface NghttpOutput {
  readonly body: Buffer;
  readonly statuses: readonly string[];
}

/** nghttp prints the bodies as they arrive, then a table with a line for each request. */
function parseNghttp(output: Buffer): NghttpOutput {
  const end = output.lastIndexOf('***** Statistics *****');
  const table = output.subarray(end).toString();
  return {
    body: output.subarray(0, end),
    statuses: [...table.matchAll(/^ *\d+ .* (\d{3}) +\S+ \//gm)].map(([, status = '']) => status),
  };
}

/** h2load, which cannot present a certificate and prints no bodies. */
export const h2load: Http2Client = {
  name: 'h2load',
  presentsCertificate: false,
  hasLengthsOnly: true,
  async run({ url, folder, files, token, items, concurrency }) {
    const authorization = `--header=authorization: Bearer ${token}`;
    const send = async (step: Step['step'], ...args: readonly string[]): Promise<Step> =>
      parseH2load(step, String(await runCommand(['h2load', ...args])));
    const allItems = join(folder, 'items');
    writeFileSync(
      allItems,
      listItems(items)
        .map((item) => `${url}${itemPath(item)}\n`)
        .join(''),
    );
    const smallBody = join(folder, 'small-body');
    writeFileSync(smallBody, SMALL_BODY);
    const refuse = async (step: RefusedStep, ...args: readonly string[]): Promise<Step> => {
      const { body: _, ...refused } = await send(step, ...args);
      return refused;
    };
    return [
      await send('call', authorization, url + CALL_PATH),
      await refuse('refused', url + CALL_PATH),
      await refuse('refused-body', `--data=${smallBody}`, url + UPLOAD_PATH),
      await refuse('refused-upload', `--data=${files.upload}`, url + UPLOAD_PATH),
      await send('upload', authorization, `--data=${files.upload}`, url + UPLOAD_PATH),
      await send('download', authorization, url + DOWNLOAD_PATH),
      // Each connection would request all items from the first on.
      await send(
        'items',
        authorization,
        '--clients=1',
        `--max-concurrent-streams=${concurrency}`,
        `--requests=${items}`,
        `--input-file=${allItems}`,
      ),
    ];
  },
};

/** h2load prints how many responses had a status of each class. */
function parseH2load(step: Step['step'], output: string): Step {
  const count = (pattern: RegExp): number => Number(pattern.exec(output)?.[1] ?? Number.NaN);
  const done = count(/ (\d+) done/);
  const isRefused = step.startsWith('refused') && count(/ (\d+) 4xx/) === done;
  const isSuccess = count(/ (\d+) 2xx/) === done && count(/ (\d+) errored/) === 0;
  return {
    step,
    status: isRefused ? 401 : isSuccess ? 200 : 0,
    version: output.includes('Application protocol: h2\n') ? 'HTTP/2' : 'another protocol',
    body: String(count(/\((\d+)\) data$/m)),
  };
}
