/**
 * Rows P01–P18: request targets and the result with a token that has only `files:read`: the status, and the target that
 * the upstream received, if any. The rules are `/public/**` (public), `/files/**` (files:read), `/admin/**`
 * (admin:manage) and `/packages/*` (any token, with opaque `%2F`).
 */
export const PATH_ROWS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'P01 a dot segment is refused': { '/public/../admin/x': '400' },
  'P02 an encoded dot segment is refused': {
    '/public/%2e%2e/admin': '400',
    '/public/%2E./admin': '400',
    '/public/.%2e/admin': '400',
  },
  'P03 a dot segment with a path parameter is refused': {
    '/public/..;/admin': '400',
    '/public/..;a=b/admin': '400',
  },
  'P04 an encoded slash is rejected unless the rule allows it': {
    '/public%2f..%2fadmin': '400',
    '/public%2Fx': '400',
    '/files/a%2Fb': '400',
    '/packages/@a%2fb': '200 /packages/@a%2Fb',
    '/packages/..%2Fadmin': '400',
  },
  'P05 a backslash is refused': { '/public\\..\\admin': '400', '/public%5c..%5cadmin': '400' },
  'P06 an empty segment is refused': { '//admin/x': '400', '/public//../admin': '400', '///': '400' },
  'P07 an encoded letter equals the letter': { '/%61dmin/x': '403', '/%66iles/%61': '200 /files/a' },
  'P08 control characters are refused; an encoded space is part of the name': {
    '/admin%00.js': '400',
    '/admin%0a': '400',
    '/admin%20': '404',
  },
  'P09 double encodings are refused': { '/%2561dmin': '400', '/%252e%252e/admin': '400' },
  'P10 overlong and non-standard encodings are refused': { '/%c0%ae%c0%ae/admin': '400', '/%u002e': '400' },
  'P11 malformed encodings are refused': { '/%zz': '400', '/%': '400' },
  'P12 fragments are refused; an encoded # is part of the name': {
    '/public#/../admin': '400',
    '/public%23': '404',
  },
  'P13 a query is not part of the path, and a path parameter is not a separator': {
    '/public?x=/../admin': '200 /public?x=/../admin',
    '/admin?/public/': '403',
    '/admin;/public': '404',
  },
  'P16 paths are case-sensitive': { '/ADMIN/x': '404', '/Admin': '404' },
  'P17 a rule for everything below a path also covers the path itself, and no other name': {
    '/admin': '403',
    '/admin/': '403',
    '/admin/.': '400',
    '/admin./': '404',
  },
  'P18 paths of the token API cannot be used to reach other routes': {
    '/authsvc/../admin': '400',
    '/authsvc/Authorize/Token/../../../admin': '400',
  },
};
