/** What the demo prints: commands for another terminal that show the whole product in a few minutes. */
export interface StoryFacts {
  readonly url: string;
  readonly adminUrl: string;
  /** Undefined when the configuration names an upstream of the user's own. */
  readonly apiUrl: string | undefined;
  readonly folder: string;
  /** How `ask` reaches the gateway: curl where it is installed, gatehouse itself elsewhere. */
  readonly curl: boolean;
  /** How gatehouse is called from the folder. */
  readonly program: string;
  readonly password: string | undefined;
  readonly renewed: string;
}

const JSON_TYPE = `-H 'Content-Type: application/json'`;

export function story(facts: StoryFacts): string {
  const { url, folder, password } = facts;
  const ask = facts.curl
    ? `curl -sS -w '  [%{http_code}]\\n' --cacert pki/ca.pem "$@"`
    : `${facts.program} call --show-status --cacert pki/ca.pem "$@"`;
  return [
    `gatehouse runs: ${url}`,
    `  admin listener  ${facts.adminUrl}`,
    ...(facts.apiUrl === undefined ? [] : [`  demo API        ${facts.apiUrl}`]),
    `  its files       ${folder}`,
    ...(facts.renewed === '' ? [] : [`  renewed         ${facts.renewed}`]),
    'gatehouse.yaml there is a configuration to start from. Saved changes apply at once, apart from',
    'settings that need a restart.',
    '',
    'Paste this into another terminal, line by line or all at once:',
    '',
    `    cd ${quote(folder)}; URL=${url}`,
    `    ask() { ${ask}; }`,
    `    field() { sed -n "s/.*\\"$1\\":\\"\\([^\\"]*\\)\\".*/\\1/p"; }`,
    "    echo '# 1. alice gets a token by her certificate'",
    '    GRANT=$(ask --cert pki/alice.pem --key pki/alice-key.pem \\',
    `      ${JSON_TYPE} \\`,
    `      -d '{"client_id":"report-runner","scope":"files:read"}' \\`,
    '      $URL/authsvc/Authorize/Certificate); echo "$GRANT"',
    '    TOKEN=$(echo "$GRANT" | field access_token)',
    '    REFRESH=$(echo "$GRANT" | field refresh_token)',
    "    echo '# 2. through the gateway to the API, which learns who is calling'",
    '    ask -H "Authorization: Bearer $TOKEN" $URL/files/welcome.txt',
    "    echo '# 3. refused: this token may read files, not write reports'",
    `    ask -H "Authorization: Bearer $TOKEN" -d 'A quiet day' $URL/reports`,
    "    echo '# 4. a refresh gives a new pair of tokens'",
    `    ask ${JSON_TYPE} \\`,
    `      -d '{"client_id":"report-runner","refresh_token":"'"$REFRESH"'"}' \\`,
    '      $URL/authsvc/Authorize/Token',
    "    echo '# 5. a revocation ends the grant: its tokens are refused from now on'",
    '    ask -H "Authorization: Bearer $TOKEN" $URL/authsvc/Revoke/Token',
    '    ask -H "Authorization: Bearer $TOKEN" $URL/files/welcome.txt',
    "    echo '# 6. a device without a certificate asks; a person says yes in a browser'",
    '    DEVICE=$(ask -d client_id=report-runner -d scope=files:read \\',
    '      $URL/authsvc/Authorize/Device); echo "$DEVICE"',
    '    echo "Open $(echo "$DEVICE" | field verification_uri_complete)"',
    ...(password === undefined ? [] : [`    echo "and sign in as bob, password ${password}"`]),
    "    echo '# 7. authorization_pending until bob has said yes; then run it again'",
    '    ask -d client_id=report-runner \\',
    '      -d grant_type=urn:ietf:params:oauth:grant-type:device_code \\',
    '      -d "device_code=$(echo "$DEVICE" | field device_code)" \\',
    '      $URL/authsvc/Authorize/Token',
    '',
    'The browser does not know the development CA (pki/ca.pem) and warns: accept it.',
    'pki/alice.p12 and pki/bob.p12 are for browsers; their passwords are in passwords.txt.',
    'Ctrl-C ends gatehouse. What happens is told below.',
    '',
    '',
  ].join('\n');
}

/** For sh: as it is where that is safe, in single quotes elsewhere. */
export const quote = (word: string): string =>
  /^[A-Za-z0-9_./:@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`;
