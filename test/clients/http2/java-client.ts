import { fileURLToPath } from 'node:url';
import { needs } from '../../set-up/programs.ts';
import { type Http2Client, runProgram } from './walkthrough.ts';

needs('javac');

const SOURCE = fileURLToPath(new URL('./Http2Client.java', import.meta.url));

export const javaClient: Http2Client = {
  name: 'Java HttpClient',
  presentsCertificate: true,
  // Java compiles a single source file itself; the JDK is needed for its compiler.
  run: (target) => runProgram(['java', SOURCE], target),
};
