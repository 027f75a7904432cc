import { spawnSync } from 'node:child_process';
import { relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Settings } from '../../config/schema.ts';
import { PACKAGE_ROOT } from '../../lib/package-root.ts';
import { quoteForShell } from '../quote.ts';
import type { DemoApi } from './api.ts';
import type { DemoFolder } from './folder.ts';

const JSON_TYPE = `-H 'Content-Type: application/json'`;

/** Commands for another terminal that demonstrate the product in a few minutes. */
export function renderWalkthrough(settings: Settings, demoFolder: DemoFolder, api: DemoApi): string {
  const options = createOptions(settings, demoFolder, api);
  const { url, folder, password } = options;
  const requestCommand = options.hasCurl
    ? `curl -sS -w '  [%{http_code}]\\n' --cacert pki/ca.pem "$@"`
    : `${options.program} call --show-status --cacert pki/ca.pem "$@"`;
  return [
    `gatehouse is running: ${url}`,
    `  admin listener  ${options.adminUrl}`,
    `  console         ${options.adminUrl}/console (token: data/admin-token)`,
    ...(options.apiUrl === undefined ? [] : [`  demo API        ${options.apiUrl}`]),
    `  files           ${folder}`,
    ...(options.renewed === '' ? [] : [`  renewed         ${options.renewed}`]),
    'gatehouse.yaml there is a configuration to start from. Saved changes apply immediately,',
    'except for settings that need a restart.',
    '',
    'Paste this into another terminal, line by line or all at once:',
    '',
    `    cd ${quoteForShell(folder)}; URL=${url}`,
    `    ask() { ${requestCommand}; }`,
    `    field() { sed -n "s/.*\\"$1\\":\\"\\([^\\"]*\\)\\".*/\\1/p"; }`,
    "    echo '# 1. alice gets a token with her certificate'",
    '    GRANT=$(ask --cert pki/alice.pem --key pki/alice-key.pem \\',
    '      -d grant_type=client_credentials -d client_id=report-runner \\',
    '      -d scope=files:read $URL/authsvc/oauth2/token); echo "$GRANT"',
    '    TOKEN=$(echo "$GRANT" | field access_token)',
    "    echo '# 2. through the gateway to the API, which receives the identity of the caller'",
    '    ask -H "Authorization: Bearer $TOKEN" $URL/files/welcome.txt',
    "    echo '# 3. rejected: this token may read files, not write reports'",
    `    ask -H "Authorization: Bearer $TOKEN" -d 'A quiet day' $URL/reports`,
    "    echo '# 4. once revoked, the token is rejected'",
    '    ask -d "token=$TOKEN" $URL/authsvc/oauth2/revoke',
    '    ask -H "Authorization: Bearer $TOKEN" $URL/files/welcome.txt',
    "    echo '# 5. a device without a certificate asks for a token; a user confirms in a browser'",
    '    DEVICE=$(ask -d client_id=report-runner -d scope=files:read \\',
    '      $URL/authsvc/oauth2/device_authorization); echo "$DEVICE"',
    '    echo "Open $(echo "$DEVICE" | field verification_uri_complete)"',
    ...(password === undefined ? [] : [`    echo "and sign in as bob, password ${password}"`]),
    '',
    'When bob has confirmed, paste the rest:',
    '',
    "    echo '# 6. the device gets its tokens (authorization_pending: not confirmed yet)'",
    '    GRANT=$(ask -d client_id=report-runner \\',
    '      -d grant_type=urn:ietf:params:oauth:grant-type:device_code \\',
    '      -d "device_code=$(echo "$DEVICE" | field device_code)" \\',
    '      $URL/authsvc/oauth2/token); echo "$GRANT"',
    "    echo '# 7. a refresh returns a new pair of tokens'",
    '    ask -d grant_type=refresh_token -d client_id=report-runner \\',
    '      -d "refresh_token=$(echo "$GRANT" | field refresh_token)" \\',
    '      $URL/authsvc/oauth2/token',
    "    echo '# 8. the token API, a second API for existing clients'",
    '    ask --cert pki/alice.pem --key pki/alice-key.pem \\',
    `      ${JSON_TYPE} \\`,
    `      -d '{"client_id":"report-runner","scope":"files:read"}' \\`,
    '      $URL/authsvc/Authorize/Certificate',
    '',
    'The browser does not trust the development CA (pki/ca.pem) and shows a warning: accept it.',
    'pki/alice.p12 and pki/bob.p12 are for browsers; their passwords are in passwords.txt.',
    'Ctrl-C stops gatehouse. Events are logged below.',
    '',
    '',
  ].join('\n');
}

function createOptions(settings: Settings, demoFolder: DemoFolder, api: DemoApi) {
  const { publicUrl, admin, upstreams } = settings;
  const hasOwnUpstream = upstreams['default']?.url !== `http://127.0.0.1:${api.port}`;
  return {
    url: publicUrl,
    adminUrl: `http://${admin.host}:${admin.port}`,
    /** Undefined when the configuration names another upstream. */
    apiUrl: hasOwnUpstream ? undefined : `http://127.0.0.1:${api.port}`,
    folder: demoFolder.folder,
    hasCurl: spawnSync('curl', ['--version'], { stdio: 'ignore', timeout: 5_000 }).status === 0,
    /** The command that runs gatehouse from the folder. */
    program: getProgramCommand(demoFolder.folder),
    password: demoFolder.passwords['bob'],
    renewed: demoFolder.isNew ? '' : demoFolder.renewed.join(', '),
  };
}

/** `npx gatehouse` works in folders below the installation; elsewhere the absolute path of the program is needed. */
function getProgramCommand(folder: string): string {
  const relativePath = relative(fileURLToPath(PACKAGE_ROOT), folder);
  if (relativePath !== '..' && !relativePath.startsWith(`..${sep}`)) return 'npx gatehouse';
  return `${quoteForShell(process.execPath)} ${quoteForShell(resolve(process.argv[1] ?? ''))}`;
}
