import { packageVersion } from '../observability/build.ts';
import { type Command, EXIT, writeJson } from './command.ts';

export { packageVersion } from '../observability/build.ts';

export const command: Command = {
  name: 'version',
  summary: 'prints the version',
  usage: ['gatehouse version'],
  options: {},
  async run(context) {
    const { node, openssl } = process.versions;
    const version = packageVersion();
    if (context.json) writeJson(context, { gatehouse: version, node, openssl });
    else context.stdout(`gatehouse ${version} (Node ${node}, OpenSSL ${openssl})\n`);
    return EXIT.ok;
  },
};
