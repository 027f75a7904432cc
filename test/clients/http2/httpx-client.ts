import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { installPythonTools } from '../python.ts';
import { type Http2Client, runProgram } from './walkthrough.ts';

const SOURCE = fileURLToPath(new URL('./httpx_client.py', import.meta.url));

export const httpx: Http2Client = {
  name: 'httpx',
  presentsCertificate: true,
  run: async (target) => runProgram([join(await installPythonTools(), 'python'), SOURCE], target),
};
