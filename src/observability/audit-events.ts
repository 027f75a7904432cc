/**
 * Audit events; the table in docs/observability.md is generated from them. An `action` or `alert` is about access. Unauthenticated
 * clients can cause a `refusal` or `request` in any number, so these are dropped first.
 */
const DEFINITIONS = {
  'action grant_issued': 'A grant and its first tokens were issued.',
  'action grant_refreshed': 'A grant was refreshed.',
  'action refresh_retried': 'A refresh was repeated after its response was lost; the same tokens were returned.',
  'action refresh_rolled_forward': 'A refresh succeeded although the store had lost the previous one.',
  'alert refresh_reuse':
    'A used refresh token was presented again, so two parties hold this grant. `action` is what was done.',
  'action grant_revoked': 'A grant was revoked. `by` is how.',
  'refusal grant_denied':
    'The token service refused a request; `reason` is why. For a token exchange and a logout token, `detail` is the exact reason, and `issuer` the trusted issuer if it is known.',
  'request device_requested':
    'A device requested confirmation. Dropped first, like refusals, because anyone can cause it.',
  'action device_confirmed': 'A user approved a device.',
  'action device_denied': 'A user denied a device.',
  'alert device_closed': 'A device request was closed after too many wrong passwords.',
  'refusal device_evicted':
    'A pending device request was replaced: a limit was reached, and its network had the most pending requests.',
  'alert device_code_replayed': 'A device code was presented again after it had been used.',
  'action authorization_approved': 'A user approved an app that redirected them (authorization code).',
  'action authorization_denied': 'A user denied an app that redirected them.',
  'alert code_replayed': 'An authorization code was presented again after it had been used, so its grant was revoked.',
  'alert subject_token_replayed':
    'A token from a trusted issuer was presented again for an exchange that accepts each token once.',
  'alert client_assertion_replayed': 'A client assertion was presented again after it had been used.',
  'action sign_in': 'A user signed in on the confirmation page.',
  'refusal sign_in_failed': 'A sign-in failed.',
  'refusal code_guess_failed': 'An unknown user code was entered.',
  'refusal locked_out':
    'Further attempts are rejected for a while after too many failures; `what` is the kind of attempt.',
  'alert certificate_names_differ': 'The names in a certificate refer to different users.',
  'alert record_refused':
    'A record of the store failed authentication and is treated as absent: `kind` and `record` name it, `reason` is `mac_wrong` or `mac_missing`.',
  'alert revocations_restored':
    'Revocations were missing from Redis and were restored from memory; `count` is their number.',
  'action issuer_logout':
    'A trusted issuer reported a logout, and the tokens of the subject or session (`what`) were revoked.',
  'action configuration_changed': 'A changed configuration was applied.',
  'action keys_changed': 'The signing and sealing keys have changed.',
  'action admin_action':
    'An operator used the grant administration, or signed in to or out of the console; `act` is the action, `by` and `from` the operator and the address.',
  'refusal admin_sign_in_failed': 'A wrong admin token was entered at the console.',
  'action service_started': 'A process has started to serve.',
  'action service_stopped': 'A process is stopping.',
} as const satisfies Record<`${keyof typeof KINDS} ${string}`, string>;

const KINDS = {
  action: { kind: 'action', severity: 'info' },
  alert: { kind: 'action', severity: 'warning' },
  refusal: { kind: 'refusal', severity: 'notice' },
  request: { kind: 'refusal', severity: 'info' },
} as const;

export type AuditEvent = keyof typeof DEFINITIONS extends infer Key
  ? Key extends `${string} ${infer Event}`
    ? Event
    : never
  : never;

type AuditKind = (typeof KINDS)[keyof typeof KINDS] & { readonly description: string };

export const AUDIT_EVENTS = Object.fromEntries(
  Object.entries(DEFINITIONS).map(([key, description]) => {
    const [kind, event] = key.split(' ');
    return [event, { ...KINDS[kind as keyof typeof KINDS], description }];
  }),
) as Readonly<Record<AuditEvent, AuditKind>>;
