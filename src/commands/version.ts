import { readPackageVersion } from '../lib/package-version.ts';
import { type Command, writeJson } from './command.ts';

export const command: Command = {
  name: 'version',
  summary: 'prints the version',
  usage: ['gatehouse version'],
  options: {},
  async run(context) {
    const { node, openssl } = process.versions;
    const version = readPackageVersion();
    if (context.json) writeJson(context, { gatehouse: version, node, openssl });
    else context.stdout(`gatehouse ${version} (Node ${node}, OpenSSL ${openssl})\n`);
  },
};
