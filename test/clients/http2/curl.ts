import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { needs } from '../../set-up/programs.ts';
import {
  CALL_PATH,
  DOWNLOAD_PATH,
  type Http2Client,
  itemBody,
  listItems,
  runCommand,
  SMALL_BODY,
  type Step,
  sha256,
  TOKEN_PATH,
  TOKEN_REQUEST,
  UPLOAD_PATH,
} from './walkthrough.ts';

needs('curl');

/** curl, which multiplexes with `--parallel`. */
export const curl: Http2Client = {
  name: 'curl',
  presentsCertificate: true,
  async run({ url, folder, files, items, concurrency }) {
    const outputs = join(folder, 'curl');
    mkdirSync(outputs);
    const output = (name: string | number): string => join(outputs, String(name));
    const read = (name: string): string => readFileSync(output(name), 'utf8');
    const base = ['curl', '--silent', '--show-error', '--http2', '--cacert', files.ca];
    const write = ['--write-out', '%{http_version} %{response_code}\n'];
    const send = async (step: Step['step'], path: string, args: readonly string[]): Promise<Step> => {
      const text = String(await runCommand([...base, ...write, '--output', output(step), ...args, url + path]));
      const [version, status] = text.trim().split(' ');
      return { step, status: Number(status), version: `HTTP/${version}` };
    };
    const certificate = ['--cert', files.certificate, '--key', files.key];
    const token = await send('token', TOKEN_PATH, [...certificate, '--json', TOKEN_REQUEST]);
    const bearer = (JSON.parse(read('token')) as { access_token: string }).access_token;
    const authorization = ['--header', `Authorization: Bearer ${bearer}`];
    const call = await send('call', CALL_PATH, authorization);
    const refused = [
      await send('refused', CALL_PATH, []),
      await send('refused-body', UPLOAD_PATH, ['--data', SMALL_BODY]),
      await send('refused-upload', UPLOAD_PATH, ['--data-binary', `@${files.upload}`]),
    ];
    const upload = await send('upload', UPLOAD_PATH, [...authorization, '--data-binary', `@${files.upload}`]);
    const download = await send('download', DOWNLOAD_PATH, authorization);

    const parallel = ['--parallel', '--parallel-max', String(concurrency)];
    const allItems = `${url}/files/item/[1-${items}]`;
    const lines = String(
      await runCommand([...base, ...write, ...parallel, ...authorization, '--output', output('#1'), allItems]),
    );
    const reported = new Set(lines.trim().split('\n'));
    const correct = listItems(items).filter((item) => read(String(item)) === itemBody(item));
    const steps: Step[] = [
      token,
      { ...call, body: read('call') },
      ...refused,
      { ...upload, body: read('upload') },
      { ...download, body: sha256(readFileSync(output('download'))) },
      {
        step: 'items',
        status: 200,
        version: [...reported].join() === '2 200' ? 'HTTP/2' : [...reported].join(),
        body: String(correct.length),
      },
    ];
    rmSync(outputs, { recursive: true });
    return steps;
  },
};
