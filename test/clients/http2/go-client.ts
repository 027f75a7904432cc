import { fileURLToPath } from 'node:url';
import { goProgram } from '../../support/go-program.ts';
import { type Http2Client, runProgram } from './walkthrough.ts';

export const goClientProgram = goProgram(fileURLToPath(new URL('./go', import.meta.url)), 'http2-client');

export const goClient: Http2Client = {
  name: 'Go net/http',
  presentsCertificate: true,
  async run(target) {
    const program = await goClientProgram.build();
    return runProgram(['env', `SSL_CERT_FILE=${target.files.ca}`, program], target);
  },
};
