/**
 * Audit events; the table in docs/observability.md is generated from them. An `action` changes access. A `refusal` can be caused
 * by unauthenticated clients in any number, so refusals are dropped first.
 */
export const AUDIT_EVENTS = {
  grant_issued: action('A grant and its first tokens were issued.'),
  grant_refreshed: action('A grant was refreshed.'),
  refresh_retried: action('A refresh was repeated after its response was lost; the same tokens were returned.'),
  refresh_rolled_forward: action('A refresh succeeded although the store had lost the previous one.'),
  refresh_reuse: alert(
    'A used refresh token was presented again, so two parties hold this grant. `action` is what was done.',
  ),
  grant_revoked: action('A grant was revoked. `by` is how.'),
  grant_denied: refusal(
    'The token service refused a request; `reason` is why. For a token exchange and a logout token, `detail` is the exact reason, and `issuer` the trusted issuer if it is known.',
  ),
  device_requested: {
    ...refusal('A device requested confirmation. Dropped first, like refusals, because anyone can cause it.'),
    severity: 'info',
  },
  device_confirmed: action('A user approved a device.'),
  device_denied: action('A user denied a device.'),
  device_closed: alert('A device request was closed after too many wrong passwords.'),
  device_evicted: refusal(
    'A pending device request was replaced: a limit was reached, and its network had the most pending requests.',
  ),
  device_code_replayed: alert('A device code was presented again after it had been used.'),
  authorization_approved: action('A user approved an app that redirected them (authorization code).'),
  authorization_denied: action('A user denied an app that redirected them.'),
  code_replayed: alert('An authorization code was presented again after it had been used, so its grant was revoked.'),
  subject_token_replayed: alert(
    'A token from a trusted issuer was presented again for an exchange that accepts each token once.',
  ),
  client_assertion_replayed: alert('A client assertion was presented again after it had been used.'),
  sign_in: action('A user signed in on the confirmation page.'),
  sign_in_failed: refusal('A sign-in failed.'),
  code_guess_failed: refusal('An unknown user code was entered.'),
  locked_out: refusal(
    'Further attempts are rejected for a while after too many failures; `what` is the kind of attempt.',
  ),
  certificate_names_differ: alert('The names in a certificate refer to different users.'),
  record_refused: alert(
    'A record of the store failed authentication and is treated as absent: `kind` and `record` name it, `reason` is `mac_wrong` or `mac_missing`.',
  ),
  revocations_restored: alert(
    'Revocations were missing from Redis and were restored from memory; `count` is their number.',
  ),
  issuer_logout: action(
    'A trusted issuer reported a logout, and the tokens of the subject or session (`what`) were revoked.',
  ),
  configuration_changed: action('A changed configuration was applied.'),
  keys_changed: action('The signing and sealing keys have changed.'),
  admin_action: action(
    'An operator used the grant administration, or signed in to or out of the console; `act` is the action, `by` and `from` the operator and the address.',
  ),
  admin_sign_in_failed: refusal('A wrong admin token was entered at the console.'),
  service_started: action('A process has started to serve.'),
  service_stopped: action('A process is stopping.'),
} as const satisfies Record<string, AuditKind>;

export type AuditEvent = keyof typeof AUDIT_EVENTS;

interface AuditKind {
  readonly kind: 'action' | 'refusal';
  readonly severity: 'info' | 'notice' | 'warning';
  readonly description: string;
}

function action(description: string): AuditKind {
  return { kind: 'action', severity: 'info', description };
}

function alert(description: string): AuditKind {
  return { kind: 'action', severity: 'warning', description };
}

function refusal(description: string): AuditKind {
  return { kind: 'refusal', severity: 'notice', description };
}
