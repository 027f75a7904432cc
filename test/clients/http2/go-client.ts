import { fileURLToPath } from 'node:url';
import { buildGoProgram } from '../go.ts';
import { type Http2Client, runProgram } from './walkthrough.ts';

const SOURCES = fileURLToPath(new URL('./go', import.meta.url));

export const goClient: Http2Client = {
  name: 'Go net/http',
  presentsCertificate: true,
  async run(target) {
    const program = await buildGoProgram('http2-client', SOURCES);
    return runProgram(['env', `SSL_CERT_FILE=${target.files.ca}`, program], target);
  },
};
