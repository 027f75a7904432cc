/** Security headers of every HTML document that gatehouse renders. The content security policy is that of the document. */
export const DOCUMENT_HEADERS = {
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
  pragma: 'no-cache',
  'x-content-type-options': 'nosniff',
  'x-robots-tag': 'noindex, nofollow',
  // COOP with COEP does not match COOP alone (HTML, "matching cross-origin opener policies"): a document of the API on
  // the same origin that sends only COOP cannot script the pages.
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-embedder-policy': 'require-corp',
  'cross-origin-resource-policy': 'same-origin',
  'origin-agent-cluster': '?1',
  'permissions-policy': 'camera=(), geolocation=(), microphone=(), payment=(), usb=()',
} as const;
