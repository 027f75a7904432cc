import { resolve } from 'node:path';
import type { DevicePrompt } from '../client/device.ts';
import { printable } from '../client/printable.ts';
import { webAddress } from './address.ts';
import { type Command, type Context, EXIT, UsageError, writeJson } from './command.ts';
import {
  PROFILE_OPTION,
  type Profile,
  profileName,
  readProfile,
  saveProfile,
  withClient,
} from './profile.ts';

export const command: Command = {
  name: 'login',
  summary: 'obtains a token: by a certificate, or by confirming this terminal in a browser',
  usage: [
    'gatehouse login --url URL --client ID --scope SCOPE',
    'gatehouse login --url URL --client ID --scope SCOPE --cert FILE --key FILE',
    'gatehouse login',
  ],
  options: {
    url: { type: 'string', value: 'URL', help: 'where gatehouse is, such as https://api.example.test' },
    client: { type: 'string', value: 'ID', help: 'the client_id of the integration' },
    scope: { type: 'string', value: 'SCOPE', help: 'what the token is to be good for, such as files:read' },
    cert: {
      type: 'string',
      value: 'FILE',
      help: 'client certificate, PEM: signs in by it, without a browser',
    },
    key: { type: 'string', value: 'FILE', help: 'its private key, PEM' },
    cacert: { type: 'string', value: 'FILE', help: 'the CA to trust, PEM (default: those of the runtime)' },
    service: { type: 'string', value: 'PATH', help: 'the path of the token service (default: /authsvc)' },
    'no-qr': { type: 'boolean', help: 'show no QR code' },
    ...PROFILE_OPTION,
  },
  notes: [
    'What is left out is as it was at the last login of that profile.',
    'Tokens are kept in files of mode 0600 below GATEHOUSE_HOME (default: ~/.config/gatehouse).',
    'Afterwards: gatehouse token, gatehouse whoami, gatehouse logout.',
  ],
  async run(context) {
    const name = profileName(context);
    const profile = profileFor(context, name);
    const grant = await withClient(context, name, profile, async (client) => {
      const shown = prompter(context);
      try {
        return await client.login({ onDevice: shown.show });
      } finally {
        shown.done();
      }
    });
    saveProfile(context, name, profile);
    const until = new Date(grant.until * 1_000).toISOString().slice(0, 10);
    if (context.json)
      writeJson(context, {
        profile: name,
        scope: grant.scope,
        ...(grant.identity !== undefined && { identity: grant.identity }),
        expires: Math.floor(grant.expires),
        until: Math.floor(grant.until),
      });
    else
      context.stdout(
        `Signed in${grant.identity === undefined ? '' : ` as ${printable(grant.identity)}`} for ${grant.scope}, until ${until}.\n`,
      );
    return EXIT.ok;
  },
};

function profileFor(context: Context, name: string): Profile {
  const said = (option: string): string | undefined => context.option(option);
  const file = (option: string): string | undefined => {
    const given = said(option);
    return given === undefined ? undefined : resolve(context.cwd, given);
  };
  const fresh = said('url') !== undefined;
  const before = fresh ? undefined : readProfile(context, name);
  const profile = {
    url: said('url') ?? before?.url,
    servicePath: said('service') ?? before?.servicePath,
    clientId: said('client') ?? before?.clientId,
    scope: said('scope') ?? before?.scope,
    cacert: file('cacert') ?? before?.cacert,
    cert: file('cert') ?? before?.cert,
    key: file('key') ?? before?.key,
  };
  const { url, clientId, scope } = profile;
  if (url === undefined || clientId === undefined || scope === undefined)
    throw new UsageError('gatehouse login: --url, --client and --scope are needed');
  webAddress('gatehouse login: --url', url, {
    scheme: 'https',
    form: 'is an address, such as https://api.example.test',
  });
  if ((profile.cert === undefined) !== (profile.key === undefined))
    throw new UsageError('gatehouse login: --cert and --key go together');
  return { ...profile, url, clientId, scope };
}

interface Prompter {
  readonly show: (prompt: DevicePrompt) => Promise<void>;
  /** Nothing is waited for any more. */
  readonly done: () => void;
}

/** The code to confirm, on standard error: standard output is for the result. A spinner only where somebody looks. */
function prompter(context: Context): Prompter {
  const terminal = process.stderr.isTTY && context.env['TERM'] !== 'dumb';
  let spinner: ReturnType<typeof spin> | undefined;
  return {
    async show({ userCode, verificationUri, verificationUriComplete, expiresIn }) {
      const { terminalQr } = await import('./terminal-qr.ts');
      if (terminal && !context.flag('no-qr')) context.stderr(`\n${terminalQr(verificationUriComplete)}\n`);
      context.stderr(`\nOpen    ${verificationUriComplete}\n`);
      context.stderr(`or enter ${userCode} at ${verificationUri}\n\n`);
      const text = `Waiting for the confirmation of ${userCode}`;
      if (terminal) spinner = spin(context, text, expiresIn);
      else context.stderr(`${text}, ${Math.floor(expiresIn)} s at most.\n`);
    },
    done: () => spinner?.stop(),
  };
}

const FRAMES = '⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏';
const CLEAR_LINE = '\r\u001b[2K';

function spin(context: Context, text: string, seconds: number): { readonly stop: () => void } {
  const end = performance.now() + seconds * 1_000;
  let frame = 0;
  const draw = (): void => {
    const left = Math.max(0, Math.round((end - performance.now()) / 1_000));
    const clock = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, '0')}`;
    frame = (frame + 1) % FRAMES.length;
    context.stderr(`${CLEAR_LINE}${FRAMES[frame]} ${text} (${clock} left)`);
  };
  const timer = setInterval(draw, 120);
  draw();
  return {
    stop() {
      clearInterval(timer);
      context.stderr(CLEAR_LINE);
    },
  };
}
